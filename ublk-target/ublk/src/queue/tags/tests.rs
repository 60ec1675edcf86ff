use super::*;
use driver::{Done, Machine, Outbox};
use memory::{Arena, Class, Filling};
use std::collections::BTreeMap;
use volume_client::BlockError;

/// A disk in memory that takes as many requests as it has places.
struct Disk {
    arena: Arena,
    places: usize,
    taken: Vec<BlockRequest>,
    done: VecDeque<Completion>,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    fn new(places: usize, memory: usize) -> Self {
        let (taken, done, blocks) = (Vec::new(), VecDeque::new(), BTreeMap::new());
        Self { arena: Arena::small(memory), places, taken, done, blocks }
    }

    fn run(&mut self) {
        for BlockRequest { tag, op, offset, .. } in self.taken.drain(..) {
            let result = match op {
                BlockOp::Write { data, crcs } => {
                    assert_eq!(crcs.unwrap(), wire::pieces(&data));
                    self.blocks.insert(offset.0, data.to_vec());
                    Ok(BlockDone::Done)
                }
                BlockOp::Read => match self.blocks.get(&offset.0) {
                    Some(bytes) => {
                        let mut memory = self.arena.take(bytes.len(), Class::Client).unwrap();
                        memory.copy_from_slice(bytes);
                        Ok(BlockDone::Read([memory.filled().whole()].into_iter().collect()))
                    }
                    None => Err(BlockError::Io),
                },
                _ => Ok(BlockDone::Done),
            };
            self.done.push_back(Completion { tag, result });
        }
    }
}

impl Machine for Disk {
    type Mail = ();
    type Letter = ();
    fn start(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
    fn done(&mut self, _: Time, _: Done, _: &mut dyn Outbox<()>) {}
    fn mail(&mut self, _: Time, (): (), _: &mut dyn Outbox<()>) {}
    fn end_turn(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn finished(&self) -> bool {
        true
    }
}

impl Executor for Disk {
    fn memory(&self, len: usize) -> Option<Filling> {
        self.arena.take(len, Class::Client)
    }
    fn submit(&mut self, _: Time, request: BlockRequest) -> Result<(), BlockRequest> {
        if self.taken.len() >= self.places {
            return Err(request);
        }
        self.taken.push(request);
        Ok(())
    }
    fn next_completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
    fn in_flight(&self) -> usize {
        self.taken.len() + self.done.len()
    }
    fn stop(&mut self) {}
    fn abort(&mut self, _: Time, _: &mut dyn Outbox<()>) {}
}

const BUFFER: usize = 16 << 10;

fn ask(op_flags: u32, sectors: u32, start: u64) -> Descriptor {
    Descriptor { op_flags, sectors, start }
}

fn buffers(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|tag| vec![u8::try_from(tag).unwrap() + 1; BUFFER]).collect()
}

fn turn(tags: &mut Tags, disk: &mut Disk, buffers: &mut [Vec<u8>]) -> Vec<Answer> {
    tags.feed(Time(0), disk, buffers);
    disk.run();
    let mut answers = Vec::new();
    while let Some(completion) = disk.next_completion() {
        answers.extend(tags.finished(completion, buffers));
    }
    answers
}

#[test]
fn what_was_written_with_one_tag_is_read_with_another() {
    let (mut tags, mut disk, mut buffers) = (Tags::new(2), Disk::new(8, 1 << 20), buffers(2));
    assert_eq!(tags.arrived(0, ask(WRITE | FUA, 9, 8), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, 4608)]);
    assert_eq!(tags.arrived(1, ask(READ, 9, 8), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(1, 4608)]);
    assert!(buffers[1][..4608].iter().all(|byte| *byte == 1) && buffers[1][4608..].iter().all(|byte| *byte == 2));
    let Counters { reads, writes, fua, read_bytes, written_bytes, .. } = tags.counters;
    assert_eq!((reads, writes, fua, read_bytes, written_bytes), (1, 1, 1, 4608, 4608));
    assert!(disk.arena.leaks().is_ok());
}

#[test]
fn fua_goes_along_with_every_change_that_asks_for_it() {
    let (mut tags, mut disk, buffers) = (Tags::new(4), Disk::new(8, 1 << 20), buffers(4));
    for (tag, op_flags) in [(0, WRITE | FUA), (1, WRITE), (2, WRITE_ZEROES | FUA), (3, FLUSH)] {
        assert_eq!(tags.arrived(tag, ask(op_flags, 8, 0), BUFFER), None);
    }
    tags.feed(Time(0), &mut disk, &buffers);
    let fua: Vec<_> = disk.taken.iter().map(|request| request.fua).collect();
    assert_eq!(fua, [true, false, true, false]);
}

#[test]
fn a_flush_is_recognised_by_its_operation_whatever_its_sectors_say() {
    let (mut tags, mut disk, mut buffers) = (Tags::new(1), Disk::new(8, 1 << 20), buffers(1));
    assert_eq!(tags.arrived(0, ask(FLUSH, u32::MAX, u64::MAX), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, 0)]);
    assert_eq!(tags.counters.flushes, 1);
}

#[test]
fn what_we_never_offered_and_what_does_not_fit_is_answered_at_once() {
    let mut tags = Tags::new(1);
    assert_eq!(tags.arrived(0, ask(13, 8, 0), BUFFER), Some((0, -libc::EOPNOTSUPP)));
    assert_eq!(tags.arrived(0, ask(4, 8, 0), BUFFER), Some((0, -libc::EOPNOTSUPP)));
    assert_eq!(tags.arrived(0, ask(WRITE, 33, 0), BUFFER), Some((0, -libc::EINVAL)));
    assert_eq!(tags.arrived(0, ask(READ, 1, u64::MAX), BUFFER), Some((0, -libc::EINVAL)));
    assert_eq!((tags.counters.unknown, tags.counters.errors), (2, 4));
    assert!(!tags.holds_back());
}

#[test]
fn discards_and_zeroes_may_be_longer_than_a_buffer() {
    let (mut tags, mut disk, mut buffers) = (Tags::new(2), Disk::new(8, 1 << 20), buffers(2));
    assert_eq!(tags.arrived(0, ask(DISCARD, 1 << 17, 0), BUFFER), None);
    assert_eq!(tags.arrived(1, ask(WRITE_ZEROES, 1 << 17, 0), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, 0), (1, 0)]);
}

#[test]
fn requests_wait_in_order_for_a_place_and_for_memory() {
    for (places, memory) in [(1, 1 << 20), (8, 4096)] {
        let (mut tags, mut disk, mut buffers) = (Tags::new(4), Disk::new(places, memory), buffers(4));
        for tag in 0..4 {
            assert_eq!(tags.arrived(tag, ask(WRITE, 8, u64::from(tag) * 8), BUFFER), None);
        }
        for tag in 0..4 {
            assert!(tags.holds_back());
            disk.blocks.clear();
            assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(tag, 4096)], "{places} places, {memory} bytes");
        }
        assert!(!tags.holds_back());
        assert_eq!(tags.counters.held_back, 3);
    }
}

#[test]
fn a_completion_answers_once_and_a_short_read_is_an_error() {
    let (mut tags, mut disk, mut buffers) = (Tags::new(1), Disk::new(8, 1 << 20), buffers(1));
    assert_eq!(tags.arrived(0, ask(WRITE, 8, 0), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, 4096)]);
    assert_eq!(tags.finished(Completion { tag: 0, result: Ok(BlockDone::Done) }, &mut buffers), None);
    assert_eq!(tags.finished(Completion { tag: 1 << 40, result: Ok(BlockDone::Done) }, &mut buffers), None);
    assert_eq!(tags.counters.stray, 2);
    assert_eq!(tags.arrived(0, ask(READ, 16, 0), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, -libc::EIO)], "8 sectors of 16");
    assert_eq!(tags.arrived(0, ask(READ, 8, 8), BUFFER), None);
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, -libc::EIO)], "the executor's own error");
}

#[test]
fn a_queue_that_refuses_answers_what_is_held_and_what_comes() {
    let (mut tags, mut disk, mut buffers) = (Tags::new(3), Disk::new(1, 1 << 20), buffers(3));
    for tag in 0..2 {
        assert_eq!(tags.arrived(tag, ask(WRITE, 8, 0), BUFFER), None);
    }
    tags.feed(Time(0), &mut disk, &buffers);
    assert_eq!(tags.refuse(Errno::IO), [(1, -libc::EIO)]);
    assert_eq!(tags.arrived(2, ask(FLUSH, 0, 0), BUFFER), Some((2, -libc::EIO)));
    assert_eq!(turn(&mut tags, &mut disk, &mut buffers), [(0, 4096)]);
}
