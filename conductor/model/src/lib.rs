//! Ids, units, volume map, epochs, placement, membership. Pure.
