//! The store that owns one disk. Pure: the disk is its only seam.
