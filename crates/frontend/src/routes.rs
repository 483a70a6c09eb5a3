// SPDX-License-Identifier: Apache-2.0

//! HTTP routes beside Dynamo's: `GET /regime`, the router's state as JSON.

use std::sync::Arc;

use axum::Json;
use dynamo_llm::http::service::{
    FrontendExtensionContext, FrontendRouteExtension, FrontendRouteSet,
};
use regime_policy::Handle;
use tokio::sync::watch;

/// The routes, and Dynamo's view of its models once the HTTP service is built.
#[must_use]
pub fn extension(
    handle: Handle,
) -> (
    FrontendRouteExtension,
    watch::Receiver<Option<FrontendExtensionContext>>,
) {
    let (built, context) = watch::channel(None);
    let extension = move |context: FrontendExtensionContext| {
        built.send_replace(Some(context));
        let handle = handle.clone();
        Ok(FrontendRouteSet::builder()
            .get("/regime", move || {
                let handle = handle.clone();
                async move { Json(handle.report()) }
            })?
            .build())
    };
    (Arc::new(extension), context)
}

/// Dynamo's view of its models, as soon as there is one; `None` when the service will never be built.
pub async fn built(
    mut context: watch::Receiver<Option<FrontendExtensionContext>>,
) -> Option<FrontendExtensionContext> {
    context.wait_for(Option::is_some).await.ok()?.clone()
}
