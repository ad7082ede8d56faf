//! A hold on all deliveries: the engine does not start before an operator has released it.

use std::sync::Arc;
use std::time::Duration;

use posthaste_store::{Error, Store};

/// How often a node that holds asks whether it still has to.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Sets a hold if that was asked for. Answers whether there is one, also from before.
pub(crate) async fn begin(store: &dyn Store, is_asked_for: bool) -> Result<bool, Error> {
    if is_asked_for {
        store.set_hold().await?;
    }
    Ok(store.hold().await?.is_some())
}

/// Returns when deliveries are not held, or when the server stops. While the store does not answer, nothing is sent.
pub(crate) async fn released(store: Arc<dyn Store>, stopped: impl Future<Output = ()>) {
    let mut stopped = std::pin::pin!(stopped);
    let mut was_held = false;
    loop {
        match store.hold().await {
            Ok(None) => {
                if was_held {
                    tracing::info!("deliveries were released");
                }
                return;
            }
            Ok(Some(hold)) if !was_held => {
                was_held = true;
                let (waiting, tried) = (hold.waiting, hold.tried);
                tracing::warn!(waiting, tried, "all deliveries are held; release them with `posthaste hold release`");
            }
            Ok(Some(_)) => {}
            Err(error) => tracing::warn!(%error, "whether deliveries are held cannot be read; nothing is sent"),
        }
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
    }
}
