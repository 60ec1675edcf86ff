//! `trine volume clone`, `flatten`, `copy-range` and `copy-ranges`: volumes that share with others.

use crate::config::ClusterArgs;
use crate::output::{Exit, Failure, Outcome, OutputArgs, Size, size, table, when};
use crate::progress::{Unit, follow, sentence};
use crate::snapshot::SnapshotName;
use crate::volume::{WaitArgs, When, finish, name};
use clap::Args;
use conductor_client::Client;
use conductor_model::views::{CopyRange, CopyRangeInfo, NewVolume};
use conductor_model::{Bytes, OrderId};

#[derive(Args)]
pub(crate) struct CloneArgs {
    /// The snapshot to begin as
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotName,
    /// The new volume's name
    #[arg(value_name = "NEW", value_parser = name)]
    name: String,
    /// Its size, at least the snapshot's: a multiple of 4 KiB, such as 100G [default: the snapshot's]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Fewest durable copies that may acknowledge a write [default: as of the snapshot's volume]
    #[arg(long, value_name = "N")]
    min_copies: Option<u8>,
    /// When a write is acknowledged: always durable, or only by the next flush, as of a disk with a write cache [default: as of the
    /// snapshot's volume]
    #[arg(long, value_enum, value_name = "WHEN")]
    durability: Option<When>,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct FlattenArgs {
    /// The clone
    #[arg(value_parser = name)]
    name: String,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct CopyRangeArgs {
    /// The snapshot to copy from
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    source: SnapshotName,
    /// The volume to copy into, at the same offset; its shards must be as large as the source's
    #[arg(value_parser = name)]
    volume: String,
    /// First byte: a multiple of 4 KiB, such as 0 or 512M
    #[arg(long, default_value = "0", value_name = "SIZE")]
    offset: Size,
    /// How many bytes: a multiple of 4 KiB, such as 1G [default: up to the end of the smaller of the two]
    #[arg(long, value_name = "SIZE")]
    length: Option<Size>,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct CopyRangesArgs {
    /// The volume that is copied into
    #[arg(value_parser = name)]
    volume: String,
    /// End this one, by its number: what was copied stays, and it is listed with its reason. Forget it if it has ended already
    #[arg(long, value_name = "COPY", value_parser = number)]
    cancel: Option<OrderId>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn clone(args: &CloneArgs) -> Outcome {
    let client = args.cluster.client()?;
    let parent = client.volume(&args.snapshot.volume)?.info;
    let new = NewVolume {
        size: Bytes(args.size.map_or(0, |size| size.0)),
        min_copies: args.min_copies.unwrap_or(parent.min_copies),
        durability: args.durability.map_or(parent.durability, Into::into),
        ..NewVolume::clone_of(args.name.as_str(), args.snapshot.to_string())
    };
    let info = client.create_volume(&new)?;
    finish(&client, info, &args.wait, args.output, "cloned")
}

pub(crate) fn flatten(args: &FlattenArgs) -> Outcome {
    let client = args.cluster.client()?;
    let begun = client.flatten(&args.name)?;
    if args.wait.no_wait {
        return args.output.print_done(&begun, |info| format!("volume {} is being flattened", info.name));
    }
    let done = follow(&format!("flattening of {}", args.name), Unit::Parts("copies"), args.wait.timeout, || {
        let info = client.volume(&args.name)?.info;
        Ok(match &info.flatten {
            Some(progress) => Err(progress.clone()),
            None => Ok(info),
        })
    })?;
    args.output.print_done(&done, |info| format!("volume {} needs no other volume any more", info.name))
}

pub(crate) fn copy_range(args: &CopyRangeArgs) -> Outcome {
    let client = args.cluster.client()?;
    let offset = Bytes(args.offset.0);
    let length = match args.length {
        Some(length) => Bytes(length.0),
        None => rest(&client, args, offset)?,
    };
    let range = CopyRange { source: args.source.to_string(), offset, length };
    let begun = client.copy_range(&args.volume, &range)?;
    let say = |copy: &CopyRangeInfo, how: &str| {
        let (length, source) = (size(length), &args.source);
        args.output.print_done(copy, |copy| format!("copy {}: {length} of {source} {how} {}", copy.id, copy.volume))
    };
    if args.wait.no_wait {
        return say(&begun, "are being copied into");
    }
    let done = follow(&format!("copy {} into {}", begun.id, args.volume), Unit::Bytes, args.wait.timeout, || {
        let Some(copy) = client.copy_ranges(&args.volume)?.into_iter().find(|c| c.id == begun.id) else {
            let why =
                format!("copy {} is not listed any more: whether it was done or cancelled is not known", begun.id);
            return Err(Failure::new(Exit::TimedOut, why));
        };
        match &copy.failed {
            None if copy.done => Ok(Ok(copy)),
            None => Ok(Err(copy.progress)),
            Some(why) => {
                // Looked at: it need not be listed any more.
                client.cancel_copy_range(&args.volume, begun.id)?;
                let (copied, of) = (Size(copy.progress.done), Size(copy.progress.of));
                Err(Failure::new(Exit::Failed, format!("the copy ended after {copied} of {of}: {why}")))
            }
        }
    })?;
    say(&done, "copied into")
}

pub(crate) fn copy_ranges(args: &CopyRangesArgs) -> Outcome {
    let client = args.cluster.client()?;
    if let Some(id) = args.cancel {
        client.cancel_copy_range(&args.volume, id)?;
    }
    args.output.print(&client.copy_ranges(&args.volume)?, |copies| copies_table(copies))
}

/// A copy's number, as it is listed or bare.
fn number(text: &str) -> Result<OrderId, String> {
    let digits = text.strip_prefix('q').unwrap_or(text);
    digits
        .parse()
        .map(OrderId)
        .map_err(|_| "a copy's number is wanted, such as q3, as `trine volume copy-ranges` lists it".to_owned())
}

fn copies_table(copies: &[CopyRangeInfo]) -> String {
    let row = |copy: &CopyRangeInfo| {
        let state = match &copy.failed {
            Some(why) => format!("ended: {why}"),
            None if copy.done => "done".to_owned(),
            None => sentence(&copy.progress, Unit::Bytes),
        };
        vec![copy.id.to_string(), copy.source.clone(), size(copy.offset), size(copy.length), when(copy.started), state]
    };
    table(&["COPY", "FROM", "OFFSET", "LENGTH", "STARTED", "STATE"], copies.iter().map(row))
}

/// Up to where both end.
fn rest(client: &Client, args: &CopyRangeArgs, offset: Bytes) -> Outcome<Bytes> {
    let source = client.snapshot_map(&args.source.volume, &args.source.name)?.size;
    let end = source.min(client.volume(&args.volume)?.info.size);
    match end.0.checked_sub(offset.0) {
        Some(length) if length > 0 => Ok(Bytes(length)),
        _ => {
            Err(Failure::usage(format!("there is nothing to copy from {} on: both end at {}", args.offset, size(end))))
        }
    }
}
