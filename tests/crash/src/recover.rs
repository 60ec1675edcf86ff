//! The end of a store, its next life, and the question whether that holds what it must.

use crate::content::{self, Content, ZEROS};
use crate::disk::{End, Step, Stop};
use crate::engine::{Ability, Engine};
use crate::flying::{Flying, What, range, view};
use crate::model::{Change, Copy, Image};
use crate::moment::Moment;
use crate::world::{World, blocks};
use conductor_model::{BLOCK, BlockRange, CopyId};
use driver::Span;
use memory::Class;
use node_store::{FillMark, Store, StoreDone, StoreError, StoreOp, Tag, block_crcs};
use std::collections::BTreeMap;

/// One opening in so many is stopped itself.
const STOPPED_OPENINGS: u64 = 3;
/// Blocks per read of the comparison.
const PIECE: u32 = 256;

/// What a crash may have left in a block besides what the model's image allows: what was being written there.
type Written = BTreeMap<(u64, u32), Vec<Content>>;

impl<E: Engine> World<E> {
    /// The store ends here, in whatever it was doing, and another one is opened.
    pub(crate) fn crash(&mut self) {
        self.count_moments();
        let mut cut = self.end();
        let opened = loop {
            if self.rng.below(STOPPED_OPENINGS) == 0 {
                let (steps, events) = (self.disks.steps(), self.disks.events());
                self.disks.set_stop(match self.rng.below(3) {
                    0 => Stop::Before(events + 1 + self.rng.below(4)),
                    1 => Stop::Unheard(events + 1 + self.rng.below(4)),
                    _ => Stop::Step(steps + self.rng.below(60)),
                });
            }
            match self.open() {
                Some(opened) => break opened,
                None => {
                    self.counts.moments.count(vec![Moment::Recovery]);
                    cut |= self.end();
                }
            }
        };
        self.disks.set_stop(Stop::Never);
        match opened {
            Ok(store) => self.store = Some(store),
            Err(refused) => panic!("a crash leaves a store that opens, not: {refused:?}"),
        }
        self.take_stock(cut);
    }

    /// Power is cut, and the store opened again: says what was on the disks in between.
    pub(crate) fn cut(&mut self) -> Vec<(Vec<u8>, Vec<bool>)> {
        self.count_moments();
        self.counts.bump("power cuts");
        self.store = None;
        self.disks.end(End::PowerCut);
        let images = self.disks.images();
        self.store = Some(self.open().expect("nothing stops this").expect("a crash leaves a store that opens"));
        self.take_stock(true);
        images
    }

    fn count_moments(&mut self) {
        let mut moments: Vec<Moment> = self.flying.values().flat_map(|flying| flying.what.moments()).collect();
        moments.extend(E::moments(self.shape, self.store(), &self.disks.open()));
        self.counts.moments.count(moments);
    }

    /// Power is cut, or the process is killed. True if what was not synced may be lost.
    fn end(&mut self) -> bool {
        let kill = E::can(Ability::KillThenPowerCut) && self.rng.below(4) == 0;
        let how = if kill { End::Kill } else { End::PowerCut };
        self.counts.bump(if kill { "kills" } else { "power cuts" });
        self.tell(|| {
            let open = self.disks.open();
            let list = open.iter().map(|o| {
                format!(
                    "{:?}@{}+{} {}{}",
                    o.disk,
                    o.at,
                    o.len,
                    if o.flying { "flying" } else { "cached" },
                    if o.durable { " durable" } else { "" }
                )
            });
            format!("{how:?} with {}", list.collect::<Vec<_>>().join(", "))
        });
        self.store = None;
        self.disks.end(how);
        self.check_disks();
        !kill
    }

    /// The offline checker finds nothing.
    pub(crate) fn check_disks(&mut self) {
        let complaints = E::check(&self.disks);
        assert!(complaints.is_empty(), "the offline checker: {complaints:#?}");
    }

    /// Let the store come to an end in good order, and open it again.
    pub(crate) fn restart(&mut self) {
        assert!(self.drain(), "nothing stops this");
        self.counts.bump("restarts");
        self.tell(|| "restart".to_owned());
        self.store = None;
        self.check_disks();
        self.store = Some(self.open().expect("nothing stops this").expect("it was in good order"));
        self.take_stock(false);
    }

    /// Find out what became of what was in flight, and compare everything else. `cut`: what was not synced may be lost.
    fn take_stock(&mut self, cut: bool) {
        let flying = std::mem::take(&mut self.flying);
        if !cut {
            // A kill loses nothing that was completed.
            self.copies.values_mut().for_each(|copy| copy.settle(self.completions));
        }
        let (mut written, mut rolled) = (Written::new(), BTreeMap::new());
        let mut open: Vec<(u64, Change)> = vec![];
        for Flying { copy, what } in flying.into_values() {
            self.left_open(copy, &what, &mut written, &mut rolled);
            let Some(model) = self.copies.get(&copy) else { continue };
            if let Some(held) = what.held(model.whole()) {
                let first = if let What::Write { first, .. } = what { Some(first) } else { None };
                open.push((copy, Change { held, first, certain: false, loose: None }));
            }
        }
        self.compare_lists();
        for id in self.copies.keys().copied().collect::<Vec<_>>() {
            self.compare_copy(id, &written, rolled.get_mut(&id));
        }
        for (copy, change) in open {
            if let Some(model) = self.copies.get_mut(&copy) {
                model.changes.push(change);
            }
        }
        self.settle_changes(&rolled);
        for id in self.copies.keys().copied().collect::<Vec<_>>() {
            self.run(id, What::Above);
        }
        self.check_usage();
    }

    /// What was in flight: names and lists say what became of it, or it is left to the comparison.
    fn left_open(&mut self, id: u64, what: &What, written: &mut Written, rolled: &mut BTreeMap<u64, Rolled>) {
        let here = self.store().copies().into_iter().find(|(copy, _)| *copy == CopyId(id)).map(|(_, config)| config);
        match what {
            What::Write { at, first, .. } => {
                for n in 0..at.count.0 {
                    written.insert((id, at.from.0 + n), vec![Content(first.0 + u64::from(n))]);
                }
            }
            What::Zero { at, .. } => {
                for n in at.from.0..at.from.0 + at.count.0 {
                    written.insert((id, n), vec![ZEROS]);
                }
            }
            What::Share { at, from: (copy, snapshot), .. } => {
                let source = self.image(*copy, Some(*snapshot)).expect("nothing dropped it meanwhile").clone();
                for n in at.from.0..at.from.0 + at.count.0 {
                    written.insert((id, n), source.allowed(n));
                }
            }
            What::Create { config, parent } if here.is_some() => {
                let blocks = blocks(config.size);
                let image = match parent {
                    None => Image::zeros(blocks),
                    Some((copy, snapshot)) => {
                        let mut image =
                            self.image(*copy, Some(*snapshot)).expect("nothing dropped it meanwhile").clone();
                        image.resize(blocks);
                        image
                    }
                };
                self.copies.insert(id, Copy::new(config.clone(), image, *parent));
            }
            What::Delete if here.is_none() => {
                self.copies.remove(&id);
            }
            What::Join { config } => {
                let found = here.expect("it was there");
                let model = self.copies.get_mut(&id).expect("it was there");
                assert!(found == *config || found == model.config, "copy {id} has joined {found:?}");
                model.join(found);
            }
            What::Mark { mark, known, .. } => {
                let found = self.store().fill_mark(CopyId(id));
                let model = self.copies.get_mut(&id).expect("it was there");
                let before = model.mark;
                model.mark = known.map_or(*mark, |_| FillMark::default());
                assert!(found == model.mark || found == before, "copy {id} has the mark {found:?}");
                model.mark = found;
            }
            What::Snapshot { id: snapshot, .. } => {
                let listed = self.store().snapshots(CopyId(id)).iter().any(|listed| listed.0 == *snapshot);
                let model = self.copies.get_mut(&id).expect("it was there");
                if listed {
                    model.snapshots.push((*snapshot, model.live.clone()));
                }
            }
            What::Drop { id: snapshot } => {
                let listed = self.store().snapshots(CopyId(id)).iter().any(|listed| listed.0 == *snapshot);
                let model = self.copies.get_mut(&id).expect("it was there");
                if !listed {
                    model.snapshots.retain(|(other, _)| other != snapshot);
                }
            }
            What::Rollback { id: snapshot, stamp, .. } => {
                let model = &self.copies[&id];
                let mut image = model.snapshot(*snapshot).expect("it stays").clone();
                image.resize(model.blocks());
                rolled.insert(id, Rolled { image, stamp: *stamp, happened: false, certain: false });
            }
            _ => {}
        }
    }

    fn compare_lists(&self) {
        let listed: Vec<u64> = self.store().copies().iter().map(|(id, _)| id.0).collect();
        assert_eq!(listed, self.copies.keys().copied().collect::<Vec<_>>(), "the copies after a crash");
        for (id, config) in self.store().copies() {
            let model = &self.copies[&id.0];
            assert_eq!(config, model.config, "the configuration of copy {id}");
            assert_eq!(self.store().fill_mark(id), model.mark, "the mark of copy {id}");
            let snapshots: Vec<u64> = self.store().snapshots(id).iter().map(|snapshot| snapshot.0).collect();
            let expected: Vec<u64> = model.snapshots.iter().map(|(snapshot, _)| *snapshot).collect();
            assert_eq!(snapshots, expected, "the snapshots of copy {id}");
        }
    }

    /// Read all of a copy, and take what is found for what is there.
    fn compare_copy(&mut self, id: u64, written: &Written, rolled: Option<&mut Rolled>) {
        let views: Vec<Option<u64>> =
            self.copies[&id].snapshots.iter().map(|(snapshot, _)| Some(*snapshot)).chain([None]).collect();
        let mut rolled = rolled;
        for of in views {
            let found = self.read_all(id, of);
            let model = self.copies.get_mut(&id).expect("it is there");
            let live = of.is_none();
            if let (true, Some(rolled)) = (live, &mut rolled) {
                rolled.settle(&model.live, &found, id);
                if rolled.happened {
                    model.live = rolled.image.clone();
                }
            }
            let image = match of {
                None => &mut model.live,
                Some(snapshot) => {
                    &mut model.snapshots.iter_mut().find(|(other, _)| *other == snapshot).expect("it is listed").1
                }
            };
            for (n, found) in (0..).zip(found) {
                let new = if live { written.get(&(id, n)) } else { None };
                assert!(
                    image.allows(n, found) || new.is_some_and(|new| new.contains(&found)),
                    "block {n} of copy {id} view {of:?} reads as {found:?} after a crash, not {:?} or {new:?}",
                    image.allowed(n)
                );
                image.set(n, found);
            }
        }
    }

    /// All blocks of a view, each whole.
    fn read_all(&mut self, id: u64, of: Option<u64>) -> Vec<Content> {
        let blocks = self.image(id, of).expect("it is listed").len();
        let mut found = Vec::with_capacity(blocks as usize);
        let mut from = 0;
        while from < blocks {
            let at = range(from, PIECE.min(blocks - from));
            let data =
                self.read(id, of, at).unwrap_or_else(|error| panic!("copy {id} view {of:?} blocks {at}: {error}"));
            for (n, block) in (from..).zip(data.chunks(BLOCK)) {
                let content = content::of(block);
                found.push(content.unwrap_or_else(|| panic!("block {n} of copy {id} view {of:?} is torn")));
            }
            from += at.count.0;
        }
        found
    }

    /// Read, with nothing else in flight: the bytes, or what the store says.
    pub(crate) fn read(&mut self, id: u64, of: Option<u64>, at: BlockRange) -> Result<Vec<u8>, StoreError> {
        assert!(self.flying.is_empty(), "it is alone");
        let into = self.arena.take(at.count.0 as usize * BLOCK, Class::Client).expect("there is memory");
        let op = StoreOp::Read { copy: CopyId(id), view: view(of), at, into };
        match self.alone(op)? {
            StoreDone::Read(data, crcs) => {
                assert_eq!(block_crcs(&data), crcs, "the checksums of a read are those of its data");
                Ok(data.to_vec())
            }
            other => panic!("a read was answered {other:?}"),
        }
    }

    /// One operation that the model does not take part in.
    pub(crate) fn alone(&mut self, op: StoreOp) -> Result<StoreDone, StoreError> {
        let tag = Tag(u64::MAX);
        let Self { disks, store, now, .. } = self;
        let store = store.as_mut().expect("it is alive");
        store.submit(*now, tag, op, &mut |op| disks.submit(op));
        loop {
            store.end_turn(*now, &mut |op| disks.submit(op));
            if let Some((found, result)) = store.next_completion() {
                assert_eq!(found, tag, "nothing else is in flight");
                return result;
            }
            match disks.step() {
                Step::Done(done) => store.done(*now, done, &mut |op| disks.submit(op)),
                Step::Idle => *now = (*now).max(store.next_deadline().expect("stuck: an operation waits for nothing")),
                Step::Stopped => panic!("nothing stops this"),
            }
            *now = *now + Span::micros(5);
        }
    }

    /// Which changes are there for certain, now that all has been read.
    fn settle_changes(&mut self, rolled: &BTreeMap<u64, Rolled>) {
        for (id, model) in &mut self.copies {
            let live = &model.live;
            for change in &mut model.changes {
                let undecided = change.loose.take().is_some() || !change.certain;
                if !undecided {
                    continue;
                }
                let seen = change.first.is_some_and(|first| {
                    let at = change.held.at;
                    (0..at.count.0).any(|n| live.get(at.from.0 + n) == Content(first.0 + u64::from(n)))
                });
                let whole = rolled.get(id).is_some_and(|rolled| rolled.stamp == change.held.stamp && rolled.certain);
                change.certain = seen || whole;
            }
        }
    }

    /// After all was deleted nothing is held, and space can be used again.
    pub(crate) fn end_of_world(&mut self) {
        assert!(self.drain(), "nothing stops this");
        // Children first: a parent may be needed.
        while let Some(id) = self.copies.keys().next_back().copied() {
            self.run(id, What::Delete);
            assert!(!self.copies.contains_key(&id), "copy {id} can be deleted: nothing was cloned from it");
        }
        assert!(self.quiesce(), "nothing stops this");
        let usage = self.store().usage();
        assert_eq!(usage.used.0, 0, "space leaked: {usage:?} with nothing there");
        self.store = None;
        self.check_disks();
    }
}

/// A rollback that a crash cut off: all of it or nothing.
struct Rolled {
    image: Image,
    stamp: conductor_model::Stamp,
    happened: bool,
    certain: bool,
}

impl Rolled {
    /// Decide by what was found.
    fn settle(&mut self, before: &Image, found: &[Content], copy: u64) {
        let fits = |image: &Image| (0..).zip(found).all(|(n, found)| image.allows(n, *found));
        let (after, before) = (fits(&self.image), fits(before));
        assert!(after || before, "the rollback of copy {copy} happened in part");
        // Where nothing had changed since the snapshot both are right, and nobody can tell.
        (self.happened, self.certain) = (after, !before);
    }
}
