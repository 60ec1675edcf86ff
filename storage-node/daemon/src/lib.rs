//! A storage node's process: reactors, disks, heartbeats.
