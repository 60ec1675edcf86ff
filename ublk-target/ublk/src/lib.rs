//! The ublk front end: libublk behind one module, sockets on the queue's ring.
