//! A target's process: one volume, one front end.
