//! The page that shows the locks, with demo traffic of three replicas. Run it, and open the address
//! that it prints.
//!
//! The replicas share the embedded store. With `STORE=redis://127.0.0.1/` they share a Redis
//! server, and have labels.

mod traffic;

use std::{env, error::Error};

use axum::Router;
use tokio::net::TcpListener;
use tower_distributed_lock::{
    Locks,
    admin::Admin,
    store::{MemoryStore, RedisStore},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let replicas = replicas()?;
    for (number, locks) in (1..).zip(&replicas) {
        traffic::start(locks, number);
    }

    // A real service has its authentication in front: keys can be personal data.
    let page = Admin::new(replicas[0].clone())
        .allow_force_release()
        .router();
    let app = Router::new().nest("/locks", page);

    let port = env::var("PORT").unwrap_or("3000".into());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("open http://{}/locks", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// Three replicas of a service. Real ones are processes, on machines of their own.
fn replicas() -> Result<Vec<Locks>, Box<dyn Error>> {
    let memory = MemoryStore::new();
    let replica = |number| {
        let locks = match env::var("STORE") {
            Ok(url) => {
                let label = format!("checkout-{number}");
                Locks::builder(RedisStore::builder(url).label(label).build()?)
            }
            Err(_) => Locks::builder(memory.clone()),
        };
        Ok(locks.build()?)
    };
    (1..=3).map(replica).collect()
}
