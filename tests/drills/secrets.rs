//! Drills of secrets: planned changes, and leaks.

use harness::{PEPPERS, SECRETS};

use crate::page::Reader;
use crate::stand::Stand;

pub(crate) async fn secret_rotation() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    assert_eq!(request.send(&client).await.status, 201);
    let known = request.known(&[("old", SECRETS.to_owned())]);
    Reader::open("secret-rotation", &stand, &known).await.finish().await;
    assert_eq!(stand.lock().await.books.posted(&account).await, 10_005, "it ran once");
}

pub(crate) async fn secret_leaked() {
    let stand = Stand::open().await;
    let client = stand.client().await;
    let (world, account) = stand.accounts(&client).await;
    let request = stand.request(&client, &world, &account).await;
    Reader::open("secret-leaked", &stand, &request.known(&[("old_peppers", PEPPERS.to_owned())])).await.finish().await;
}
