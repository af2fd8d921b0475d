-- +goose Up

-- Carts take available units of SKUs that are not made for one sale; these, with what carts have locked and bought, are the
-- units of a SKU that Redis knows.
ALTER TABLE skus ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0; -- counts loads into Redis; 0: never loaded

CREATE INDEX skus_own ON skus (own, id);

-- What was asked for under which key. Committed before anything is done; the answer stands in it from the transaction that
-- decided on. Kept as long as orders are.
CREATE TABLE cart_requests (
  uid         VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  idem_key    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  request     CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- hash of the lines
  order_id    VARCHAR(56)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- under which units are locked in Redis: changed when they are given back
  answer      TEXT         NULL, -- NULL: it is not decided
  created_at  DATETIME(3)  NOT NULL,
  answered_at DATETIME(3)  NULL,
  PRIMARY KEY (uid, idem_key),
  UNIQUE KEY cart_requests_order (order_id)
) DEFAULT CHARSET=utf8mb4;

-- What an order of a cart is made of. Its row in orders has sale_id 0.
CREATE TABLE cart_lines (
  order_id VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  sku_id   BIGINT      NOT NULL,
  quantity INT         NOT NULL,
  price    BIGINT      NOT NULL,               -- of one unit, when it was ordered
  currency CHAR(3)     NOT NULL,               -- the same in all lines of an order
  held     BOOLEAN     NOT NULL DEFAULT TRUE,  -- the units are locked: the order waits for its payment
  lock_id  VARCHAR(48) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- of the lock in Redis that it was made with
  PRIMARY KEY (order_id, sku_id),
  KEY cart_lines_held (sku_id, held)
);

-- Every change of a SKU's available or locked units, like ledger for sales.
CREATE TABLE sku_ledger (
  id               BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sku_id           BIGINT      NOT NULL,
  kind             VARCHAR(16) NOT NULL, -- create, restock, allot, return, lock, pay, cancel, expire
  ref              VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- order id, or intent:ID
  available_before BIGINT      NOT NULL,
  available_change BIGINT      NOT NULL,
  available_after  BIGINT      NOT NULL,
  locked_before    BIGINT      NOT NULL,
  locked_change    BIGINT      NOT NULL,
  locked_after     BIGINT      NOT NULL,
  created_at       DATETIME(3) NOT NULL,
  UNIQUE KEY sku_ledger_once (sku_id, kind, ref)
);

-- Intents for SKUs. Written while the SKU's row is locked, so those of one SKU have ascending ids in the order of their COMMITs.
CREATE TABLE sku_intents (
  id         BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sku_id     BIGINT      NOT NULL,
  kind       VARCHAR(16) NOT NULL, -- sold, back (what lock_id has locked for order_id), adjust (by quantity)
  order_id   VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  lock_id    VARCHAR(48) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  quantity   BIGINT      NOT NULL DEFAULT 0,
  created_at DATETIME(3) NOT NULL,
  done_at    DATETIME(3) NULL,
  KEY sku_intents_open (done_at, id),
  KEY sku_intents_sku (sku_id, id),
  KEY sku_intents_order (order_id)
);

-- What is available already came before the ledger.
INSERT INTO sku_ledger (sku_id, kind, ref, available_before, available_change, available_after, locked_before, locked_change, locked_after, created_at)
  SELECT id, 'create', 'create', 0, available, available, 0, locked, locked, created_at FROM skus
  WHERE available + locked > 0 AND id NOT IN (SELECT sku_id FROM sku_ledger);

-- +goose Down
DROP TABLE sku_intents, sku_ledger, cart_lines, cart_requests;
DROP INDEX skus_own ON skus;
ALTER TABLE skus DROP COLUMN epoch;
