//! A shard that is created while nodes die: nobody waits for what is not there.

use crate::common::Cluster;
use conductor_model::Durability;

#[test]
fn a_shard_is_created_without_a_copy_that_died() {
    let mut c = Cluster::new(1);
    c.w.kill(c.nodes[2]);
    c.create(1, &[0, 1, 2], None, Durability::Always);
    assert_eq!(c.in_sync(1), [0, 1], "two are enough");
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    c.w.restart(c.nodes[2]);
    c.until_in_sync(1);
    c.promote(1, 2);
    let client = c.client(1, 0);
    assert_eq!(c.read(client, 1, 0), 1, "the copy was made by its filling");
}

#[test]
fn a_shard_is_created_by_another_copy_where_its_primary_died() {
    // Before it was told, and with the other copies made.
    for told in [false, true] {
        let mut c = Cluster::new(2);
        if told {
            c.mute = true;
        } else {
            c.w.kill(c.nodes[0]);
        }
        c.create_unborn(1, &[0, 1, 2], None, Durability::Always);
        if told {
            c.until("copies are made", |c| c.configs[&crate::common::shard(1)].born);
            c.configs.get_mut(&crate::common::shard(1)).unwrap().born = false;
            c.w.kill(c.nodes[0]);
            c.mute = false;
        }
        c.take_over(1, 1);
        c.until_serving(1);
        let client = c.client(1, 0);
        c.write(client, 1, 0, 1);
        c.w.restart(c.nodes[0]);
        c.until_in_sync(1);
        c.promote(1, 0);
        let client = c.client(1, 0);
        assert_eq!(c.read(client, 1, 0), 1);
    }
}

#[test]
fn a_copy_that_is_back_before_the_conductor_would_have_it_dropped_takes_part_in_the_creation() {
    let mut c = Cluster::new(3);
    // As a conductor does where too few copies of what is being created would be left.
    c.fixed = true;
    c.deaf = true;
    c.create_unborn(1, &[0, 1, 2], None, Durability::Always);
    c.until("it would be born", |c| c.count("ask.born") > 0);
    c.w.kill(c.nodes[2]);
    c.until("a copy would be dropped", |c| c.count("ask.drop") > 0);
    c.deaf = false;
    c.until("which is refused", |c| c.count("ask.refused") > 0);
    c.w.restart(c.nodes[2]);
    c.until_serving(1);
    assert_eq!(c.in_sync(1), [0, 1, 2]);
    let client = c.client(1, 0);
    c.write(client, 1, 0, 1);
    assert_eq!(c.read(client, 1, 0), 1);
}

#[test]
fn a_copy_without_which_too_few_would_be_left_is_waited_for() {
    let mut c = Cluster::new(4);
    c.min_copies = 3;
    c.w.kill(c.nodes[2]);
    c.create_unborn(1, &[0, 1, 2], None, Durability::Always);
    c.run(driver::Span::seconds(10));
    assert_eq!((c.count("ask.drop"), c.count("ask.born")), (0, 0));
    c.w.restart(c.nodes[2]);
    c.until_serving(1);
    assert_eq!(c.in_sync(1), [0, 1, 2]);
}

#[test]
fn an_empty_copy_in_the_place_of_one_that_is_lost_takes_part_in_the_creation() {
    // The lost one has joined what was before, or not, and comes back when it is late.
    for met in [false, true] {
        let mut c = Cluster::new(5);
        if met {
            c.deaf = true;
        } else {
            c.w.kill(c.nodes[1]);
        }
        c.create_unborn(1, &[0, 1], None, Durability::Always);
        if met {
            c.until("it would be born", |c| c.count("ask.born") > 0);
            c.w.kill(c.nodes[1]);
        }
        c.run(driver::Span::seconds(10));
        assert_eq!(c.count("ask.drop"), 0, "one copy is not enough");
        c.list_instead(1, 1, 2);
        c.deaf = false;
        c.w.restart(c.nodes[1]);
        c.until_serving(1);
        assert_eq!(c.in_sync(1), [0, 2]);
        let client = c.client(1, 0);
        c.write(client, 1, 0, 1);
        c.promote(1, 2);
        let client = c.client(1, 0);
        assert_eq!(c.read(client, 1, 0), 1);
    }
}
