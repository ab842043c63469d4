//! What of the demo can be stopped and started while it runs: its API and its Kafka. The shop's panel asks for it.

use std::net::SocketAddr;
use std::sync::Arc;

use api::Api;
use serde::Serialize;
use stack::Kafka;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// Orders that wait; a person does not press faster than this is worked off.
const ORDERS_MAX: usize = 8;

/// What can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The HTTP side: its port refuses connections. The books stay open.
    Api,
    /// The broker's process.
    Kafka,
}

/// How far a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    Running,
    Stopping,
    Stopped,
    Starting,
}

/// How far both are, and what went wrong last.
#[derive(Clone, Debug)]
pub(crate) struct Stages {
    pub(crate) api: Stage,
    /// Nothing where the demo runs without a Kafka of its own.
    pub(crate) kafka: Option<Stage>,
    pub(crate) fault: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    part: Part,
    run: bool,
}

/// The side that asks.
#[derive(Clone)]
pub(crate) struct Controls {
    orders: mpsc::Sender<Order>,
    stages: watch::Receiver<Stages>,
}

impl Controls {
    /// Asks for a part to run or to stop, without waiting for it: [`Controls::stages`] tells. Tells whether it was heard.
    pub(crate) fn order(&self, part: Part, run: bool) -> bool {
        self.orders.try_send(Order { part, run }).is_ok()
    }

    pub(crate) fn stages(&self) -> Stages {
        self.stages.borrow().clone()
    }
}

/// Makes the two sides. `Kafka` says whether there is one to stop.
pub(crate) fn controls(kafka: bool) -> (Controls, Operator) {
    let (sender, orders) = mpsc::channel(ORDERS_MAX);
    let first = Stages { api: Stage::Running, kafka: kafka.then_some(Stage::Running), fault: None };
    let (told, stages) = watch::channel(first);
    (Controls { orders: sender, stages }, Operator { orders, told })
}

/// The side that does it.
pub(crate) struct Operator {
    orders: mpsc::Receiver<Order>,
    told: watch::Sender<Stages>,
}

impl Operator {
    /// Does what is asked for, one order after another, until the API ends by itself. Dropped in the middle of starting
    /// Kafka, it leaves none behind.
    pub(crate) async fn operate(&mut self, api: &mut ApiServer, kafka: &mut Option<Kafka>) -> Error {
        loop {
            let order = tokio::select! {
                () = api.ended() => return Error::ApiEnded,
                Some(order) = self.orders.recv() => order,
            };
            self.tell(order.part, if order.run { Stage::Starting } else { Stage::Stopping }, None);
            let done = match (order.part, order.run) {
                (Part::Api, true) => api.start(),
                (Part::Api, false) => {
                    api.stop().await;
                    Ok(())
                }
                (Part::Kafka, run) => match kafka.as_mut() {
                    Some(kafka) if run => kafka.restart().await.map_err(Error::from),
                    Some(kafka) => kafka.stop().await.map_err(Error::from),
                    None => Ok(()),
                },
            };
            let stage = if order.run && done.is_ok() { Stage::Running } else { Stage::Stopped };
            self.tell(order.part, stage, done.err().map(|error| error.to_string().into()));
        }
    }

    fn tell(&self, part: Part, stage: Stage, fault: Option<Arc<str>>) {
        self.told.send_modify(|stages| {
            match part {
                Part::Api => stages.api = stage,
                Part::Kafka => stages.kafka = stages.kafka.map(|_| stage),
            }
            stages.fault = fault;
        });
    }
}

/// The API on its port. Each start serves anew: an API that was told to stop says for good that it is not ready.
pub(crate) struct ApiServer {
    make: Box<dyn Fn() -> Api + Send>,
    address: SocketAddr,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl ApiServer {
    /// Serves on a listener that is bound already.
    pub(crate) fn serve(listener: tokio::net::TcpListener, make: Box<dyn Fn() -> Api + Send>) -> Result<Self> {
        let address = listener
            .local_addr()
            .map_err(|source| Error::Io { doing: "cannot tell the API's port".to_owned(), source })?;
        let mut server = Self { make, address, serving: None };
        server.begin(listener);
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn begin(&mut self, listener: tokio::net::TcpListener) {
        let (stop, stopped) = crate::run::stopper();
        self.serving = Some((stop, tokio::spawn(api::serve(listener, (self.make)(), stopped))));
    }

    /// Serves again on the same port, unless it serves.
    fn start(&mut self) -> Result<()> {
        if self.serving.is_none() {
            let port = self.address.port();
            let listener = api::listen(self.address).map_err(|source| Error::ApiPort { port, source })?;
            self.begin(listener);
        }
        Ok(())
    }

    /// Refuses connections from now on, answers what is under way, and returns when all of it is answered.
    pub(crate) async fn stop(&mut self) {
        if let Some((stop, ended)) = self.serving.take() {
            drop(stop);
            if !ended.is_finished() {
                // A task that failed has ended, too.
                drop(ended.await);
            }
        }
    }

    /// Ready once the API has ended without being asked to.
    async fn ended(&mut self) {
        match &mut self.serving {
            Some((_, ended)) if !ended.is_finished() => drop(ended.await),
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}
