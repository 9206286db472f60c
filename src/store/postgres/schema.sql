-- Version 1 of the tables and functions of a `PostgresStore`, in the schema `tdl`.
--
-- `PostgresStore::migrate` runs this file. It can be part of your own migrations instead; for another
-- schema, replace `tdl.` by its name. Run it as the role that is to own the tables, in one
-- transaction. It can be run again.

CREATE SCHEMA IF NOT EXISTS tdl;

-- What `swap` and its relatives mean to their callers. A store refuses a version that it does not know.
CREATE TABLE IF NOT EXISTS tdl.version (version int PRIMARY KEY);

-- One row for each key that is in use, or was in the last hour. Rows stay, and are updated in place:
-- without an index beside the primary key, and with room in each page, such an update touches no index and
-- needs no vacuum.
CREATE TABLE IF NOT EXISTS tdl.keys (
  key text COLLATE "C" PRIMARY KEY,
  tag bigint NOT NULL,        -- changes with each write: what a swap compares
  token bigint NOT NULL,      -- the highest fencing token that was handed out
  state bytea NOT NULL,       -- the leases and the queue, as the client encodes them
  until bigint NOT NULL,      -- when the last of them expires, or when the row was written; microseconds since 1970
  claimed boolean NOT NULL    -- whether there may be a row in `claims`
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The owner who may fence a transaction, and the record. Only a user's transaction waits for these rows, and
-- only behind another one. `swap` never does: it looks at them with SKIP LOCKED.
CREATE TABLE IF NOT EXISTS tdl.claims (
  key text COLLATE "C" PRIMARY KEY,
  owner text NOT NULL,        -- empty if nobody may fence
  token bigint NOT NULL,      -- the lowest token that may fence
  content bytea,              -- the record, if there is one
  until bigint,               -- of the record or the checkpoint
  fingerprint bytea,          -- of the request that has left a checkpoint: it outlasts the owner, and ends with a record
  point text,
  data bytea
) WITH (fillfactor = 70);

-- What is left of the rows that were swept: no token of theirs was above this one.
CREATE TABLE IF NOT EXISTS tdl.floor (one boolean PRIMARY KEY CHECK (one), token bigint NOT NULL, swept bigint NOT NULL);
INSERT INTO tdl.floor VALUES (true, 0, 0) ON CONFLICT DO NOTHING;

-- Empty after a crash and on a new primary, because it is not logged: that is how both are noticed.
CREATE UNLOGGED TABLE IF NOT EXISTS tdl.boot (one boolean PRIMARY KEY CHECK (one), id uuid NOT NULL, since timestamptz NOT NULL);

DO $$
BEGIN
  -- The usual compression takes five times the CPU of lz4, which not every server was built with. ALTER TABLE
  -- would wait for all transactions that have used the table, and be in the way of all others meanwhile.
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'tdl.claims'::regclass AND attname = 'content'
    AND (attcompression = 'l' OR attstorage = 'e'))
  THEN
    RETURN;
  END IF;
  ALTER TABLE tdl.claims ALTER COLUMN content SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR syntax_error THEN
  ALTER TABLE tdl.claims ALTER COLUMN content SET STORAGE EXTERNAL;
END $$;

-- The clock, in microseconds since 1970.
CREATE OR REPLACE FUNCTION tdl.clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- What a connection asks first.
CREATE OR REPLACE FUNCTION tdl.hello_1(OUT version int, OUT boot text, OUT since bigint, OUT clock bigint, OUT server text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  SELECT max(v.version) INTO hello_1.version FROM tdl.version v;
  SELECT b.id::text, (extract(epoch FROM b.since) * 1000000)::bigint INTO boot, hello_1.since FROM tdl.boot b;
  IF boot IS NULL THEN
    INSERT INTO tdl.boot VALUES (true, gen_random_uuid(), clock_timestamp()) ON CONFLICT DO NOTHING;
    SELECT b.id::text, (extract(epoch FROM b.since) * 1000000)::bigint INTO boot, hello_1.since FROM tdl.boot b;
  END IF;
  clock := tdl.clock();
  server := (SELECT c.system_identifier FROM pg_control_system() c) || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
END $$;

-- Compare-and-swap of many keys, one after another. The keys are sorted by the caller, so that two calls
-- never wait for each other in a circle.
--
-- For each key: `expects` is the tag to be replaced (null: there is no row), and `tags` the new one (null:
-- only read). `lows` is the highest token that the caller knew of. `cares` says what else must hold:
--   0  nothing
--   1  there is no record
--   2  a grant: there is no record, and no transaction is open that an earlier owner has fenced; no owner may
--      fence from now on
--   3  as 2, and `owners` may fence from now on, with tokens from `firsts` on
--   4  as 1; the record is written: `contents`, of `owners`, until `retains`
--   5  the record is removed
--
-- Returns for each key, in this order: 0 done, 1 stale, with the present value, or 2 an open transaction.
-- `hint_of` is the index of the swap that a hint belongs to, or 0. A call that is not durable, or has changed
-- nothing, does not wait for the disk.
CREATE OR REPLACE FUNCTION tdl.swap_1(
  is_durable boolean, keys text[], expects bigint[], tags bigint[], lows bigint[], tokens bigint[], states bytea[],
  untils bigint[], cares int[], owners text[], firsts bigint[], contents bytea[], retains bigint[],
  hint_of int[], hint_channels text[], hint_payloads text[])
RETURNS TABLE (outcome int, clock bigint, tag bigint, token bigint, state bytea, record_owner text, record_until bigint, content bytea,
  began bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  is_claimed boolean;
  is_new boolean;
  the_floor bigint;
  claim_until bigint;
  done boolean[];
BEGIN
  began := (extract(epoch FROM statement_timestamp()) * 1000000)::bigint;
  FOR i IN 1 .. cardinality(keys) LOOP
    outcome := 1;
    tag := NULL; token := NULL; state := NULL; record_owner := NULL; record_until := NULL; content := NULL;

    -- The short way: one row of one table.
    IF tags[i] IS NULL THEN
      NULL;
    ELSIF expects[i] IS NULL THEN
      INSERT INTO tdl.keys VALUES
        (keys[i], tags[i], tokens[i], states[i], greatest(untils[i], tdl.clock()), cares[i] IN (3, 4))
      ON CONFLICT DO NOTHING;
      IF FOUND THEN
        SELECT f.token, EXISTS (SELECT FROM tdl.claims c WHERE c.key = keys[i]) INTO the_floor, is_claimed FROM tdl.floor f;
        IF the_floor > lows[i] AND the_floor + 100000 > tokens[i] THEN
          -- A row that was swept may have had higher tokens, if the clock was set back since.
          DELETE FROM tdl.keys k WHERE k.key = keys[i];
        ELSIF is_claimed THEN
          -- The row of the key was deleted by hand. What it has left in `claims` counts again from now on.
          UPDATE tdl.keys k SET state = '', claimed = true WHERE k.key = keys[i];
        ELSE
          outcome := 0;
          IF cares[i] IN (3, 4) THEN
            INSERT INTO tdl.claims VALUES (keys[i], owners[i], coalesce(firsts[i], 0), contents[i], retains[i]);
          END IF;
        END IF;
      END IF;
    ELSIF cares[i] <= 2 THEN
      UPDATE tdl.keys k SET
        tag = tags[i], token = tokens[i], state = states[i], until = greatest(untils[i], tdl.clock())
      WHERE k.key = keys[i] AND k.tag = expects[i] AND (cares[i] = 0 OR NOT k.claimed);
      IF FOUND THEN
        outcome := 0;
      END IF;
    END IF;

    -- The long way: also the claim.
    IF outcome = 1 AND tags[i] IS NOT NULL AND expects[i] IS NOT NULL AND cares[i] > 0 THEN
      -- The row is locked first, so that what later statements read is as new as the lock.
      SELECT k.claimed INTO is_claimed FROM tdl.keys k WHERE k.key = keys[i] AND k.tag = expects[i] FOR NO KEY UPDATE;
      IF FOUND THEN
        outcome := 0;
        is_new := false;
        IF is_claimed AND cares[i] = 1 THEN
          PERFORM FROM tdl.claims c WHERE c.key = keys[i] AND c.content IS NOT NULL AND c.until > tdl.clock();
          IF FOUND THEN
            outcome := 1;
          END IF;
        ELSIF is_claimed THEN
          SELECT CASE WHEN c.content IS NULL THEN 0 ELSE c.until END INTO claim_until
          FROM tdl.claims c WHERE c.key = keys[i] FOR UPDATE SKIP LOCKED;
          IF NOT FOUND THEN
            -- Read plainly. ON CONFLICT would wait for the user's transaction.
            PERFORM FROM tdl.claims c WHERE c.key = keys[i];
            is_new := NOT FOUND;
            IF FOUND THEN
              outcome := 2;
            END IF;
          ELSIF claim_until > tdl.clock() AND cares[i] < 5 THEN
            outcome := 1;
          END IF;
        ELSE
          is_new := true;
        END IF;
        IF outcome = 0 THEN
          IF cares[i] = 1 THEN
            NULL;
          ELSIF NOT is_new THEN
            UPDATE tdl.claims c SET
              owner = coalesce(owners[i], ''), token = coalesce(firsts[i], c.token), content = contents[i],
              until = coalesce(retains[i], c.until),
              point = CASE WHEN contents[i] IS NULL THEN c.point END, data = CASE WHEN contents[i] IS NULL THEN c.data END
            WHERE c.key = keys[i];
          ELSIF cares[i] IN (3, 4) THEN
            INSERT INTO tdl.claims VALUES (keys[i], owners[i], coalesce(firsts[i], 0), contents[i], retains[i]);
            is_claimed := true;
          ELSE
            is_claimed := false;
          END IF;
          UPDATE tdl.keys k SET
            tag = tags[i], token = tokens[i], state = states[i], until = greatest(untils[i], tdl.clock()), claimed = is_claimed
          WHERE k.key = keys[i];
        END IF;
      END IF;
    END IF;

    IF outcome = 1 THEN
      SELECT k.tag, k.token, k.state, k.claimed INTO tag, token, state, is_claimed FROM tdl.keys k WHERE k.key = keys[i];
      IF NOT FOUND THEN
        SELECT f.token INTO token FROM tdl.floor f;
      ELSIF is_claimed THEN
        SELECT c.owner, c.until, c.content INTO record_owner, record_until, content
        FROM tdl.claims c WHERE c.key = keys[i] AND c.content IS NOT NULL AND c.until > tdl.clock();
      END IF;
    END IF;
    done[i] := outcome = 0;
    clock := tdl.clock();
    RETURN NEXT;
  END LOOP;

  FOR i IN 1 .. cardinality(hint_of) LOOP
    IF hint_of[i] = 0 OR done[hint_of[i]] THEN
      PERFORM pg_notify(hint_channels[i], hint_payloads[i]);
    END IF;
  END LOOP;
  IF NOT is_durable OR NOT coalesce(true = ANY (done), false) THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
END $$;

-- The keys with a lease, a record or a queue that start with a text and come after a key, in order. Looks at
-- 1,000 rows at most. Where it stopped before the end is returned last, with a null.
CREATE OR REPLACE FUNCTION tdl.list_1(prefix text, after_key text, at_most bigint)
RETURNS TABLE (key text, is_live boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  row record;
  seen int := 0;
  live bigint := 0;
BEGIN
  FOR row IN
    SELECT k.key, k.until > tdl.clock() OR k.claimed AND EXISTS
      (SELECT FROM tdl.claims c WHERE c.key = k.key AND c.content IS NOT NULL AND c.until > tdl.clock()) AS is_live
    FROM tdl.keys k
    WHERE k.key >= prefix COLLATE "C" AND (after_key IS NULL OR k.key > after_key COLLATE "C")
    ORDER BY k.key LIMIT 1001
  LOOP
    EXIT WHEN NOT starts_with(row.key, prefix);
    IF seen = 1000 OR live = at_most THEN
      is_live := NULL;
      RETURN NEXT;
      EXIT;
    END IF;
    key := row.key;
    is_live := row.is_live;
    seen := seen + 1;
    live := live + is_live::int;
    IF is_live THEN
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;

-- Whether it is time for a sweep: for one caller in each period.
CREATE OR REPLACE FUNCTION tdl.sweep_due_1(every bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE tdl.floor f SET swept = tdl.clock() WHERE f.swept < tdl.clock() - every;
  RETURN FOUND;
END $$;

-- Deletes what has been idle for so long, among the rows after a key. Returns the last key that it looked at,
-- or null if it has reached the end.
CREATE OR REPLACE FUNCTION tdl.sweep_1(after_key text, rows int, idle bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  row record;
  last_key text;
  seen int := 0;
  highest bigint := 0;
  claim_until bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  FOR row IN
    SELECT k.key, k.tag, k.token, k.claimed, k.until < tdl.clock() - idle AS is_idle
    FROM tdl.keys k WHERE k.key > after_key COLLATE "C" ORDER BY k.key LIMIT rows
  LOOP
    last_key := row.key;
    seen := seen + 1;
    -- A token that was raised above the clock stays with its row, so that the other keys need not follow it.
    CONTINUE WHEN NOT row.is_idle OR row.token > tdl.clock();
    PERFORM FROM tdl.keys k WHERE k.key = row.key AND k.tag = row.tag FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    IF row.claimed THEN
      SELECT CASE WHEN c.content IS NULL AND c.point IS NULL THEN 0 ELSE c.until END INTO claim_until
      FROM tdl.claims c WHERE c.key = row.key FOR UPDATE SKIP LOCKED;
      IF FOUND THEN
        CONTINUE WHEN claim_until > tdl.clock() - idle;
        DELETE FROM tdl.claims c WHERE c.key = row.key;
      ELSE
        -- Locked by a user's transaction, or not there.
        PERFORM FROM tdl.claims c WHERE c.key = row.key;
        CONTINUE WHEN FOUND;
      END IF;
    END IF;
    DELETE FROM tdl.keys k WHERE k.key = row.key;
    highest := greatest(highest, row.token);
  END LOOP;
  UPDATE tdl.floor f SET token = highest WHERE f.token < highest;
  RETURN CASE WHEN seen = rows THEN last_key END;
END $$;

-- For a user's transaction. From here to its end, no other owner is granted the key, and no other turn of this
-- owner passes. Fails with TDL01 if the owner's lease or turn is over: another owner was granted the key, or a
-- later turn has been here. Fails with TDL02 if the record was written already.
CREATE OR REPLACE FUNCTION tdl.fence(key text, owner text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  is_kept boolean;
BEGIN
  -- A later turn of the same lease: waits for the earlier turns' transactions, and keeps them out from now on.
  -- This comes first; with the lock below first, two transactions would wait for each other.
  UPDATE tdl.claims c SET token = fence.token
  WHERE c.key = fence.key AND c.owner = fence.owner AND c.token < fence.token AND c.content IS NULL;
  -- FOR KEY SHARE would not hold off a grant.
  SELECT c.content IS NOT NULL INTO is_kept FROM tdl.claims c
  WHERE c.key = fence.key AND c.owner = fence.owner AND (c.token = fence.token OR c.content IS NOT NULL) FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lock is not held any more by this owner, or a later turn has fenced a transaction'
      USING ERRCODE = 'TDL01';
  ELSIF is_kept THEN
    RAISE EXCEPTION 'the answer of this claim was kept already' USING ERRCODE = 'TDL02';
  END IF;
  -- A process that is stopped here must not keep the key for ever. For this transaction only, and only if
  -- the user has set no limit.
  IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', '1min', true);
  END IF;
END $$;

-- What `keep` and `checkpoint` write is answered with, so it must not be lost in a crash, even if the user has
-- switched off that this transaction waits for the disk.
CREATE OR REPLACE FUNCTION tdl.fence_durably(key text, owner text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tdl.fence(key, owner, token);
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- For a user's transaction: as `fence`, and the record is written, which takes the place of the lease when the
-- transaction commits.
CREATE OR REPLACE FUNCTION tdl.keep(key text, owner text, token bigint, content bytea, retain_ms bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tdl.fence_durably(key, owner, token);
  UPDATE tdl.claims c SET
    content = keep.content, until = tdl.clock() + retain_ms * 1000, fingerprint = NULL, point = NULL, data = NULL
  WHERE c.key = keep.key;
END $$;

-- For a user's transaction: as `fence`, and remembers how far the request with this fingerprint has come, in
-- the place of what was remembered before.
CREATE OR REPLACE FUNCTION tdl.checkpoint(
  key text, owner text, token bigint, fingerprint bytea, point text, data bytea, retain_ms bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tdl.fence_durably(key, owner, token);
  UPDATE tdl.claims c SET
    until = tdl.clock() + retain_ms * 1000, fingerprint = checkpoint.fingerprint, point = checkpoint.point,
    data = checkpoint.data
  WHERE c.key = checkpoint.key;
END $$;

-- For a user's transaction: as `fence`, and returns how far the request with this fingerprint had come, whoever
-- ran it. No row if it has no checkpoint.
CREATE OR REPLACE FUNCTION tdl.reached(key text, owner text, token bigint, fingerprint bytea)
RETURNS TABLE (point text, data bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tdl.fence(key, owner, token);
  RETURN QUERY SELECT c.point, c.data FROM tdl.claims c
  WHERE c.key = reached.key AND c.fingerprint = reached.fingerprint AND c.point IS NOT NULL AND c.until > tdl.clock();
END $$;

REVOKE ALL ON FUNCTION tdl.clock, tdl.hello_1, tdl.swap_1, tdl.list_1, tdl.sweep_due_1, tdl.sweep_1, tdl.fence,
  tdl.fence_durably, tdl.keep, tdl.checkpoint, tdl.reached FROM PUBLIC;
INSERT INTO tdl.version VALUES (1) ON CONFLICT DO NOTHING;
