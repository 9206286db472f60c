//! The page that shows the locks: its JSON over real HTTP, and the page itself in a real browser.

mod browser;
mod demo;
mod json;
mod many;
mod payment;
mod requests;
mod screenshot;
#[path = "../../examples/admin/traffic.rs"]
mod traffic;
mod webdriver;

use test_support as support;
