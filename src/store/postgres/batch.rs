//! Many swaps as one statement.

use bytes::Bytes;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::{connect::Server, lane::Call};
use crate::{
    Error, LockKey,
    store::{
        Hint, Instance, Outcome, Owner,
        engine::{Care, Reading, SwapEnd, Swapped, Value},
        rules::{Moment, Record},
    },
    time::Instant,
};

/// A hint, as the server sends it.
#[derive(Debug)]
pub(super) struct Message {
    /// The number of the swap that has to be done for it, from 1 on. 0: it is sent in any case.
    swap: i32,
    channel: String,
    payload: String,
}

/// The hints of swaps, to be sent with them if they are done, or in any case.
pub(super) fn messages(calls: &[Call], if_done: bool) -> Vec<Message> {
    let mut messages = Vec::new();
    for (number, call) in (1..).zip(calls) {
        for (instance, hint) in &call.swap.hints {
            messages.extend(payload(hint).map(|payload| Message {
                swap: if if_done { number } else { 0 },
                channel: channel(*instance),
                payload,
            }));
        }
    }
    messages
}

/// Makes swaps, and sends hints. One row for each swap.
///
/// Somebody may keep a row locked, with a DELETE by hand for example: the statement fails after a
/// quarter of the time limit, so that its swaps can still be made alone.
pub(super) async fn run(
    client: &Client,
    server: &Server,
    calls: &[Call],
    messages: &[Message],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let schema = &server.schema;
    let patience = (server.limit.as_millis() / 4).clamp(1, i32::MAX as u128);
    // The argument is evaluated before the call, in the same transaction. (With AND instead of CASE,
    // the server would not evaluate the first part where the second one is false.)
    let sql = format!(
        "SELECT * FROM {schema}.swap_1(\
         CASE WHEN set_config('lock_timeout', '{patience}', true) <> '' THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
    );
    let claims = column(calls, |it| ClaimColumns::of(&it.swap.care));
    let params: [(&(dyn ToSql + Sync), Type); 16] = [
        (&calls.iter().any(|it| it.swap.is_durable), Type::BOOL),
        (&column(calls, |it| it.swap.key.as_str()), Type::TEXT_ARRAY),
        (&column(calls, |it| it.swap.expect), Type::INT8_ARRAY),
        (&column(calls, |it| it.swap.tag), Type::INT8_ARRAY),
        (&column(calls, |it| number(it.swap.low)), Type::INT8_ARRAY),
        (&column(calls, |it| number(it.swap.token)), Type::INT8_ARRAY),
        (&column(calls, |it| &*it.swap.state), Type::BYTEA_ARRAY),
        (
            &column(calls, |it| it.swap.until.map(micros)),
            Type::INT8_ARRAY,
        ),
        (&column(&claims, |it| it.care), Type::INT4_ARRAY),
        (
            &column(&claims, |it| it.owner.map(|owner| owner.to_string())),
            Type::TEXT_ARRAY,
        ),
        (&column(&claims, |it| it.first), Type::INT8_ARRAY),
        (
            &column(&claims, |it| it.record.map(|record| &*record.content)),
            Type::BYTEA_ARRAY,
        ),
        (
            &column(&claims, |it| it.record.map(|record| micros(record.until))),
            Type::INT8_ARRAY,
        ),
        (&column(messages, |it| it.swap), Type::INT4_ARRAY),
        (&column(messages, |it| &*it.channel), Type::TEXT_ARRAY),
        (&column(messages, |it| &*it.payload), Type::TEXT_ARRAY),
    ];
    client.query_typed(&sql, &params).await
}

/// An argument of `swap_1`, which has an array for each column.
fn column<'a, R, T>(rows: &'a [R], of: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(of).collect()
}

/// What a swap says of the row in `claims`.
struct ClaimColumns<'a> {
    care: i32,
    owner: Option<Owner>,
    first: Option<i64>,
    record: Option<&'a Record>,
}

impl<'a> ClaimColumns<'a> {
    fn of(care: &'a Care) -> Self {
        let (care, owner, first, record) = match care {
            Care::Nothing => (0, None, None, None),
            Care::NoRecord => (1, None, None, None),
            Care::Grant => (2, None, None, None),
            Care::Claim { owner, token } => (3, Some(*owner), Some(number(*token)), None),
            Care::Record(record) => (4, Some(record.owner), None, Some(record)),
            Care::NoRecordAnyMore => (5, None, None, None),
        };
        Self {
            care,
            owner,
            first,
            record,
        }
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
    let end = match row.get::<_, i32>(0) {
        0 => SwapEnd::Done,
        2 => SwapEnd::Open,
        _ => match value(row) {
            Ok(value) => SwapEnd::Stale(value.into()),
            Err(error) => return Outcome::Refused(error),
        },
    };
    Outcome::Answered(Swapped { reading, end })
}

fn value(row: &Row) -> Result<Value, Error> {
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
    let token = token.unwrap_or_default().max(0).cast_unsigned();
    Value::decode(row.get(2), token, bytes(4).unwrap_or_default(), record)
}

/// A number as the server has it: one that it cannot have is its largest.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn micros(moment: Moment) -> i64 {
    number(moment.0)
}

/// The channel on which an instance receives its hints.
pub(super) fn channel(instance: Instance) -> String {
    format!("tdl_{instance}")
}

/// The text of a hint: a letter and the key.
fn payload(hint: &Hint) -> Option<String> {
    let (letter, key) = match hint {
        Hint::Free(key) => ('f', key),
        Hint::Next(key) => ('n', key),
        Hint::Wanted(key) => ('w', key),
        Hint::Listening | Hint::Reconnected => return None,
        #[cfg(feature = "redis")]
        Hint::Moved(_) => return None,
    };
    Some(format!("{letter}{key}"))
}

/// The hint of a text.
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
    fn a_hint_survives_its_text() {
        let key = LockKey::new("日本/é 1").unwrap();
        let hints = [
            Hint::Free(key.clone()),
            Hint::Next(key.clone()),
            Hint::Wanted(key),
        ];
        for sent in hints {
            assert_eq!(hint(&payload(&sent).unwrap()), Some(sent));
        }
        for nonsense in ["", "f", "é", "x1", "f\n"] {
            assert_eq!(hint(nonsense), None, "{nonsense:?}");
        }
    }
}
