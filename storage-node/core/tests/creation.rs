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
