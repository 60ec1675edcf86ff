//! Who keeps an object alive, and why: typed holds, a reaper, live tables.
