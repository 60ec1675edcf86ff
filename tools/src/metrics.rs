//! `trine metrics`: what the cluster, and the nodes and attachments of this host, count, in the words of Prometheus.
//!
//! ```text
//!   conductor ── status ───────────┐
//!   control sockets of nodes ──────┼──► page ──► printed, or served at /metrics
//!   sockets of attachments ────────┘
//! ```
//! One of it on each machine shows all there is: the cluster's part is the same everywhere. Whoever does not answer is said to be down, and
//! the rest is shown.

mod page;

use crate::attach::records;
use crate::config::ClusterArgs;
use crate::output::{Failure, Outcome, print};
use crate::trace;
use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use clap::Args;
use clap::builder::BoolishValueParser;
use conductor_model::views::Status;
use node_daemon::{NodeLook, ask_for_look};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use target_daemon::{Look, Place, look};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

/// What a page is written in.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Serve them at http://IP:PORT/metrics until SIGTERM, instead of printing them once; prints "ready ADDRESS"
    #[arg(long, env = "TRINE_METRICS_LISTEN", value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Listen beyond loopback: whoever asks is told, and nothing is encrypted
    #[arg(long, env = "TRINE_PLAINTEXT", value_parser = BoolishValueParser::new())]
    plaintext: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl MetricsArgs {
    pub(crate) fn is_daemon(&self) -> bool {
        self.listen.is_some()
    }
}

/// What was seen.
struct Seen {
    /// `None`: the conductor does not answer.
    status: Option<Status>,
    nodes: Vec<NodeLook>,
    /// Volumes that are attached here, with what their targets say, if they do.
    targets: Vec<(String, Option<Look>)>,
}

pub(crate) fn run(args: MetricsArgs) -> Outcome {
    let MetricsArgs { listen, plaintext, cluster } = args;
    match listen {
        None => print(&page::of(&see(&cluster)?)?),
        Some(at) if !at.ip().is_loopback() && !plaintext => Err(Failure::usage(format!(
            "{at} is reachable from other machines and tells everybody: pass --plaintext to allow it"
        ))),
        Some(at) => serve(at, cluster),
    }
}

fn see(cluster: &ClusterArgs) -> Outcome<Seen> {
    let status = match cluster.client()?.status() {
        Ok(status) => Some(status),
        Err(why) => {
            tracing::warn!(%why, "what the conductor knows is left out");
            None
        }
    };
    let sockets: Vec<PathBuf> = trace::sockets(cluster)?;
    let nodes = sockets.iter().filter_map(|path| ask_for_look(path).ok()).collect();
    let places = Place::all(&records(cluster)?)?;
    let targets = places.iter().map(|place| (place.volume().to_owned(), look(place).ok())).collect();
    Ok(Seen { status, nodes, targets })
}

fn serve(at: SocketAddr, cluster: ClusterArgs) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the server's runtime")?;
    runtime.block_on(async {
        let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}"))?;
        let address = listener.local_addr().with_context(|| format!("cannot listen on {at}"))?;
        let mut term = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        let mut int = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        let stop = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        // One look at a time, however many ask.
        let cluster = Arc::new(Mutex::new(cluster));
        let routes = Router::new().route("/metrics", get(move || answer(Arc::clone(&cluster))));
        print(&format!("ready {address}"))?;
        conductor_service::serve_to_all(listener, routes, stop).await;
        Ok(())
    })
}

async fn answer(cluster: Arc<Mutex<ClusterArgs>>) -> impl IntoResponse {
    let cluster = cluster.lock_owned().await;
    let seen = tokio::task::spawn_blocking(move || see(&cluster).and_then(|seen| page::of(&seen))).await;
    match seen {
        Ok(Ok(page)) => (StatusCode::OK, [(header::CONTENT_TYPE, TYPE)], page),
        Ok(Err(failure)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], format!("{:#}\n", failure.why))
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], "a bug\n".to_owned()),
    }
}
