//! The conductor: HTTP + JSON over the model, state in redb.
