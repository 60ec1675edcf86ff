//! The volume client: routing, resending, back-pressure. Pure.
