//! Framed connections over byte streams: one receive drains many messages, one send carries all that is ready.
