//! All IOCBs of a reactor, each in a slot that keeps its number as long as anything holds it (`iocb::why`).

use crate::iocb::Iocb;
use slab::Slab;
use std::ops::{Index, IndexMut};

/// The number of an IOCB's slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct IocbKey(pub(crate) usize);

/// All of them.
#[derive(Default)]
pub(crate) struct Iocbs(Slab<Iocb>);

impl Iocbs {
    /// Adds one that may know its key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(IocbKey) -> Iocb) -> IocbKey {
        let entry = self.0.vacant_entry();
        let key = IocbKey(entry.key());
        entry.insert(make(key));
        key
    }

    /// Nothing holds it any more.
    pub(crate) fn try_remove(&mut self, key: IocbKey) -> Option<Iocb> {
        self.0.try_remove(key.0)
    }

    #[inline]
    pub(crate) fn get(&self, key: IocbKey) -> Option<&Iocb> {
        self.0.get(key.0)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: IocbKey) -> Option<&mut Iocb> {
        self.0.get_mut(key.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (IocbKey, &Iocb)> {
        self.0.iter().map(|(key, iocb)| (IocbKey(key), iocb))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (IocbKey, &mut Iocb)> {
        self.0.iter_mut().map(|(key, iocb)| (IocbKey(key), iocb))
    }
}

impl Index<IocbKey> for Iocbs {
    type Output = Iocb;

    #[inline]
    fn index(&self, key: IocbKey) -> &Iocb {
        &self.0[key.0]
    }
}

impl IndexMut<IocbKey> for Iocbs {
    #[inline]
    fn index_mut(&mut self, key: IocbKey) -> &mut Iocb {
        &mut self.0[key.0]
    }
}
