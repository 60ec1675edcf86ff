//! The mend against a model of copies: what each block must hold, which copies are damaged where, who answers.

use super::*;
use proptest::prelude::*;

/// What a copy really holds of each block, and the checksum that its metadata demands.
#[derive(Clone, Debug)]
struct Copy {
    held: Vec<u32>,
    wanted: Vec<u32>,
    away: bool,
    puts: u32,
}

impl Copy {
    fn damaged(&self) -> u64 {
        (0..self.held.len()).fold(0, |mask, n| mask | u64::from(self.held[n] != self.wanted[n]) << n)
    }
}

const FROM: u32 = 1000;

/// Drives a mend to its end, as a node would.
fn drive(copies: &mut [Copy], verify: bool, alone: bool) -> Result<Outcome, Act> {
    let count = u32::try_from(copies[0].held.len()).unwrap();
    let piece = BlockRange { from: Blocks(FROM), count: Blocks(count) };
    let ids = (0..copies.len()).map(|n| (CopyId(n as u64), (n > 0).then(|| SocketAddr::from(([10, 0, 0, 1], 1)))));
    let mut mend = Mend::new(piece, ids, verify, alone);
    let mut fetched = None;
    for _ in 0..10_000 {
        match mend.next() {
            Act::Look(at) => {
                let blocks = at.from.0 - FROM..at.from.0 - FROM + at.count.0;
                let bad = copies[0].damaged();
                match blocks.clone().find(|n| bad >> n & 1 == 1) {
                    Some(n) => mend.looked(Err(Blocks(FROM + n))),
                    None => {
                        let crcs: Vec<u32> = blocks.map(|n| copies[0].held[n as usize]).collect();
                        mend.looked(Ok(&crcs));
                    }
                }
            }
            Act::Ask => {
                for (n, copy) in copies.iter().enumerate().skip(1) {
                    let said = (copy.damaged(), copy.held.clone());
                    mend.verified(n, if copy.away { Err(Failure::Away) } else { Ok(said) });
                }
            }
            Act::Fetch(from, block) => {
                let (copy, n) = (&copies[from], (block.0 - FROM) as usize);
                let sound = copy.held[n] == copy.wanted[n];
                let result =
                    if copy.away { Err(Failure::Away) } else { sound.then_some(copy.held[n]).ok_or(Failure::Damaged) };
                fetched = result.ok();
                mend.fetched(result);
            }
            Act::Put(to, block) => {
                assert!(alone, "nothing is repaired under a shared lock");
                let (copy, n) = (&mut copies[to], (block.0 - FROM) as usize);
                copy.puts += 1;
                let content = fetched.expect("fetched before it is put");
                let result = match (copy.away, copy.wanted[n] == content) {
                    (true, _) => Err(Failure::Away),
                    (_, false) => Err(Failure::Damaged),
                    _ => {
                        copy.held[n] = content;
                        Ok(())
                    }
                };
                mend.put(to, result);
            }
            Act::Over => return Ok(mend.into_outcome()),
            act @ Act::LockAlone => return Err(act),
        }
    }
    panic!("a mend comes to its end");
}

fn sound(blocks: u32) -> Copy {
    let held: Vec<u32> = (1..=blocks).collect();
    Copy { wanted: held.clone(), held, away: false, puts: 0 }
}

#[test]
fn a_damaged_block_of_the_own_copy_is_put_right_from_the_first_copy_that_has_it() {
    let mut copies = vec![sound(20), sound(20), sound(20)];
    copies[0].held[7] = 99;
    copies[1].held[7] = 98;
    let outcome = drive(&mut copies, false, true).unwrap();
    let block = Blocks(FROM + 7);
    assert_eq!(outcome.repaired, [(CopyId(0), block), (CopyId(1), block)], "both are, once the second is known");
    assert!(outcome.own_is_sound && outcome.lost.is_empty() && !outcome.again);
    assert!(copies.iter().all(|c| c.damaged() == 0));
}

#[test]
fn a_shared_lock_is_enough_to_look_and_not_to_put_right() {
    let mut copies = vec![sound(64), sound(64), sound(64)];
    assert_eq!(drive(&mut copies, true, false), Ok(Outcome { own_is_sound: true, ..Outcome::default() }));
    copies[2].held[63] = 99;
    assert_eq!(drive(&mut copies, true, false), Err(Act::LockAlone));
    let outcome = drive(&mut copies, true, true).unwrap();
    assert_eq!(outcome.repaired, [(CopyId(2), Blocks(FROM + 63))]);
}

#[test]
fn a_block_that_no_copy_has_is_lost_and_the_others_are_put_right() {
    let mut copies = vec![sound(4), sound(4)];
    for copy in &mut copies {
        copy.held[1] = 99;
    }
    copies[0].held[2] = 99;
    let outcome = drive(&mut copies, true, true).unwrap();
    assert_eq!(outcome.lost, [(CopyId(0), Blocks(FROM + 1)), (CopyId(1), Blocks(FROM + 1))]);
    assert_eq!(outcome.repaired, [(CopyId(0), Blocks(FROM + 2))]);
    assert!(!outcome.own_is_sound && outcome.rewrite.is_none());
}

#[test]
fn nothing_is_given_up_while_a_copy_that_may_have_it_is_away() {
    let mut copies = vec![sound(4), sound(4), sound(4)];
    copies[0].held[1] = 99;
    copies[1].held[1] = 99;
    copies[2].away = true;
    let outcome = drive(&mut copies, false, true).unwrap();
    assert!(outcome.again && outcome.lost.is_empty() && outcome.repaired.is_empty() && !outcome.own_is_sound);
}

#[test]
fn content_that_every_sound_copy_has_and_the_damaged_one_refuses_is_to_be_written_again() {
    let mut copies = vec![sound(8), sound(8), sound(8)];
    for n in [3, 5] {
        copies[0].held[n] = 99;
        copies[0].wanted[n] = 77;
    }
    let outcome = drive(&mut copies, false, true).unwrap();
    assert_eq!(outcome.rewrite, Some(BlockRange { from: Blocks(FROM + 3), count: Blocks(3) }));
    assert!(outcome.repaired.is_empty() && outcome.lost.is_empty());
    copies[2].held[3] = 55;
    copies[2].wanted[3] = 55;
    let outcome = drive(&mut copies, false, true).unwrap();
    assert_eq!(outcome.lost, [(CopyId(0), Blocks(FROM + 3))], "the sound ones differ: nobody knows who is right");
}

#[test]
fn sound_copies_that_differ_are_said_and_left_alone() {
    let mut copies = vec![sound(4), sound(4), sound(4)];
    (copies[1].held[2], copies[1].wanted[2]) = (50, 50);
    let outcome = drive(&mut copies, true, false).unwrap();
    assert_eq!(outcome.diverged, [Blocks(FROM + 2)]);
    assert!(copies.iter().all(|c| c.puts == 0));
}

proptest! {
    /// Whatever is damaged: what some sound copy that answers has is right everywhere afterwards, nothing else is touched.
    #[test]
    fn what_any_copy_has_is_right_everywhere_afterwards(
        damage in prop::collection::vec((0usize..3, 0usize..64), 0..60), away in prop::option::of(1usize..3), count in 1u32..=64,
    ) {
        let mut copies = vec![sound(count), sound(count), sound(count)];
        for (copy, block) in damage {
            copies[copy].held[block % count as usize] = 90;
        }
        if let Some(n) = away {
            copies[n].away = true;
        }
        let before = copies.clone();
        let outcome = drive(&mut copies, true, true).unwrap();
        prop_assert_eq!(outcome.again, away.is_some());
        let mut lost = 0;
        for n in 0..count as usize {
            let has = before.iter().any(|c| !c.away && c.held[n] == c.wanted[n]);
            for (was, is) in before.iter().zip(&copies).filter(|(was, _)| !was.away) {
                prop_assert_eq!(is.held[n], if has { is.wanted[n] } else { was.held[n] });
                lost += usize::from(!has);
            }
        }
        prop_assert_eq!(outcome.lost.len(), if away.is_some() { 0 } else { lost });
        let damaged: u32 = before.iter().filter(|c| !c.away).map(|c| c.damaged().count_ones()).sum();
        prop_assert_eq!(outcome.repaired.len() + lost, damaged as usize);
    }
}
