//! Many swaps as one statement.

use bytes::Bytes;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::lane::Item;
use crate::{
    Error, LockKey,
    store::{
        Hint, Instance, Outcome,
        engine::{Care, Reading, Seen, Swapped},
        rules::{Moment, Record},
    },
    time::Instant,
};

/// A hint, as the server sends it.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) channel: String,
    pub(super) payload: String,
}

/// The arguments of `swap_1`: an array for each column, and for the hints.
#[derive(Debug, Default)]
pub(super) struct Batch {
    is_durable: bool,
    keys: Vec<LockKeyText>,
    expects: Vec<Option<i64>>,
    tags: Vec<Option<i64>>,
    lows: Vec<i64>,
    tokens: Vec<i64>,
    states: Vec<Option<Bytes>>,
    untils: Vec<Option<i64>>,
    cares: Vec<i32>,
    owners: Vec<Option<String>>,
    firsts: Vec<Option<i64>>,
    contents: Vec<Option<Bytes>>,
    retains: Vec<Option<i64>>,
    hint_of: Vec<i32>,
    channels: Vec<String>,
    payloads: Vec<String>,
}

/// The text of a key, as an element of an array.
type LockKeyText = String;

impl Batch {
    /// Writes the arguments. Hints go with the swaps that are not durable: NOTIFY takes a lock that
    /// all sessions of a database share, and holds it until the disk has the transaction.
    pub(super) fn new(items: &[Item], hints: Vec<Message>, is_durable: bool) -> Self {
        let mut batch = Self {
            is_durable,
            ..Self::default()
        };
        for (index, item) in items.iter().enumerate() {
            batch.push(item);
            if let Some(swap) = item.swap.as_ref().filter(|_| !is_durable) {
                for (instance, hint) in &swap.hints {
                    batch.hint(index as i32 + 1, message(*instance, hint));
                }
            }
        }
        for message in hints {
            batch.hint(0, Some(message));
        }
        batch
    }

    fn push(&mut self, item: &Item) {
        let swap = item.swap.as_ref();
        self.keys.push(item.key.as_str().to_owned());
        self.expects.push(swap.and_then(|swap| swap.expect));
        self.tags.push(swap.map(|swap| swap.tag));
        self.lows.push(swap.map_or(0, |swap| number(swap.low)));
        self.tokens.push(swap.map_or(0, |swap| number(swap.token)));
        self.states.push(swap.map(|swap| swap.state.clone()));
        let until = swap.and_then(|swap| swap.until);
        self.untils.push(until.map(|until| number(until.0)));
        let care = swap.map_or(&Care::Nothing, |swap| &swap.care);
        let (care, owner, first, record) = match care {
            Care::Nothing => (0, None, None, None),
            Care::NoRecord => (1, None, None, None),
            Care::Grant => (2, None, None, None),
            Care::Claim { owner, token } => (3, Some(*owner), Some(number(*token)), None),
            Care::Record(record) => (4, Some(record.owner), None, Some(record)),
            Care::NoRecordAnyMore => (5, None, None, None),
        };
        self.cares.push(care);
        self.owners.push(owner.map(|owner| owner.to_string()));
        self.firsts.push(first);
        self.contents
            .push(record.map(|record| record.content.clone()));
        self.retains
            .push(record.map(|record| number(record.until.0)));
    }

    fn hint(&mut self, of: i32, message: Option<Message>) {
        if let Some(message) = message {
            self.hint_of.push(of);
            self.channels.push(message.channel);
            self.payloads.push(message.payload);
        }
    }

    /// Makes the calls. One answer for each item.
    pub(super) async fn run(
        self,
        client: &Client,
        schema: &str,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let sql = format!(
            "SELECT * FROM {schema}.swap_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
             $14, $15, $16)"
        );
        let states: Vec<_> = self.states.iter().map(Option::as_deref).collect();
        let contents: Vec<_> = self.contents.iter().map(Option::as_deref).collect();
        let params: [(&(dyn ToSql + Sync), Type); 16] = [
            (&self.is_durable, Type::BOOL),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.expects, Type::INT8_ARRAY),
            (&self.tags, Type::INT8_ARRAY),
            (&self.lows, Type::INT8_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&states, Type::BYTEA_ARRAY),
            (&self.untils, Type::INT8_ARRAY),
            (&self.cares, Type::INT4_ARRAY),
            (&self.owners, Type::TEXT_ARRAY),
            (&self.firsts, Type::INT8_ARRAY),
            (&contents, Type::BYTEA_ARRAY),
            (&self.retains, Type::INT8_ARRAY),
            (&self.hint_of, Type::INT4_ARRAY),
            (&self.channels, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
        ];
        client.query_typed(&sql, &params).await
    }
}

/// The answer in a row of a statement that was sent at a time.
pub(super) fn answer(row: &Row, sent: Instant) -> Outcome<Swapped> {
    let moment = |index| Moment(row.get::<_, i64>(index).max(0).cast_unsigned());
    let reading = Reading {
        sent,
        began: moment(8),
        clock: moment(1),
    };
    match row.get::<_, i32>(0) {
        0 => Outcome::Answered(Swapped::Done(reading)),
        2 => Outcome::Answered(Swapped::Open(reading)),
        _ => seen(row, reading).map_or_else(Outcome::Refused, |seen| {
            Outcome::Answered(Swapped::Stale(seen))
        }),
    }
}

fn seen(row: &Row, reading: Reading) -> Result<Seen, Error> {
    let bytes = |index| {
        let bytes: Option<&[u8]> = row.get(index);
        bytes.map(Bytes::copy_from_slice)
    };
    let record = match (row.get::<_, Option<&str>>(5), bytes(7)) {
        (Some(owner), Some(content)) => Some(Record {
            owner: owner.parse().map_err(|_| {
                let message = format!("a record has the owner {owner:?}, who is none");
                Error::new(crate::ErrorKind::Foreign, message)
            })?,
            until: Moment(row.get::<_, i64>(6).cast_unsigned()),
            content,
        }),
        _ => None,
    };
    let token: Option<i64> = row.get(3);
    Ok(Seen {
        reading,
        tag: row.get(2),
        token: token.unwrap_or_default().max(0).cast_unsigned(),
        state: bytes(4).unwrap_or_default(),
        record,
    })
}

/// A number as the server has it: one that it cannot have is its largest.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The channel on which an instance receives its hints.
pub(super) fn channel(instance: Instance) -> String {
    format!("tdl_{instance}")
}

/// A hint as a message: a letter and the key.
pub(super) fn message(instance: Instance, hint: &Hint) -> Option<Message> {
    let (letter, key) = match hint {
        Hint::Free(key) => ('f', key),
        Hint::Next(key) => ('n', key),
        Hint::Wanted(key) => ('w', key),
        Hint::Listening | Hint::Reconnected => return None,
        #[cfg(feature = "redis")]
        Hint::Moved(_) => return None,
    };
    Some(Message {
        channel: channel(instance),
        payload: format!("{letter}{key}"),
    })
}

/// The hint of a message.
pub(super) fn hint(payload: &str) -> Option<Hint> {
    let key = LockKey::new(payload.get(1..)?).ok()?;
    match payload.as_bytes().first()? {
        b'f' => Some(Hint::Free(key)),
        b'n' => Some(Hint::Next(key)),
        b'w' => Some(Hint::Wanted(key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_survives_its_message() {
        let key = LockKey::new("日本/é 1").unwrap();
        let hints = [
            Hint::Free(key.clone()),
            Hint::Next(key.clone()),
            Hint::Wanted(key),
        ];
        for sent in hints {
            let message = message(Instance::new(), &sent).unwrap();
            assert_eq!(hint(&message.payload), Some(sent));
        }
        for nonsense in ["", "f", "é", "x1", "f\n"] {
            assert_eq!(hint(nonsense), None, "{nonsense:?}");
        }
    }
}
