-- +goose Up

-- A SKU's units are available (free to allot), allotted to its sales, or were taken by carts.
-- available + allotted + locked + sold = total.
CREATE TABLE skus (
  id         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  title      VARCHAR(200) NOT NULL,
  price      BIGINT       NOT NULL,
  currency   CHAR(3)      NOT NULL,
  own        BOOLEAN      NOT NULL, -- made for one sale: a restock of the sale brings new units
  total      BIGINT       NOT NULL,
  available  BIGINT       NOT NULL,
  allotted   BIGINT       NOT NULL DEFAULT 0,
  locked     BIGINT       NOT NULL DEFAULT 0,
  sold       BIGINT       NOT NULL DEFAULT 0,
  version    BIGINT       NOT NULL DEFAULT 1,
  created_at DATETIME(3)  NOT NULL,
  CONSTRAINT skus_units CHECK (available >= 0 AND allotted >= 0 AND locked >= 0 AND sold >= 0 AND available + allotted + locked + sold = total)
) DEFAULT CHARSET=utf8mb4;

CREATE TABLE sales (
  id             BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sku_id         BIGINT       NOT NULL,
  kind           VARCHAR(8)   NOT NULL, -- goods, coupon
  title          VARCHAR(200) NOT NULL,
  price          BIGINT       NOT NULL,
  currency       CHAR(3)      NOT NULL,
  starts_at      DATETIME(3)  NOT NULL,
  ends_at        DATETIME(3)  NOT NULL,
  per_user_limit INT          NOT NULL,
  pay_within_s   INT          NOT NULL,
  paused         BOOLEAN      NOT NULL DEFAULT FALSE,
  closed_at      DATETIME(3)  NULL,
  archived_at    DATETIME(3)  NULL,
  version        BIGINT       NOT NULL DEFAULT 1, -- counts changes; If-Match and Redis's definition go by it
  created_at     DATETIME(3)  NOT NULL,
  KEY sales_sku (sku_id),
  KEY sales_archived (archived_at)
) DEFAULT CHARSET=utf8mb4;

CREATE TABLE tranches (
  sale_id  BIGINT      NOT NULL,
  at       DATETIME(3) NOT NULL,
  quantity BIGINT      NOT NULL,
  PRIMARY KEY (sale_id, at)
);

-- The hot row of a sale, and the judge: nothing oversells past these checks.
CREATE TABLE sale_stock (
  sale_id   BIGINT NOT NULL PRIMARY KEY,
  total     BIGINT NOT NULL,
  available BIGINT NOT NULL,
  locked    BIGINT NOT NULL DEFAULT 0,
  sold      BIGINT NOT NULL DEFAULT 0,
  epoch     BIGINT NOT NULL DEFAULT 0, -- of the last reconciliation; 0: never loaded into Redis
  token     BIGINT NOT NULL DEFAULT 0, -- of the newest reconciler
  CONSTRAINT sale_stock_units CHECK (available >= 0 AND locked >= 0 AND sold >= 0 AND available + locked + sold = total)
);

CREATE TABLE orders (
  id         VARCHAR(56)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  sale_id    BIGINT       NOT NULL,
  uid        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  quantity   INT          NOT NULL,
  amount     BIGINT       NOT NULL,
  status     VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  reason     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  idem_key   VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL,
  created_at DATETIME(3)  NOT NULL, -- the press, by Redis's clock
  decided_at DATETIME(3)  NOT NULL, -- the insert of this row
  pay_before DATETIME(3)  NULL,
  ended_at   DATETIME(3)  NULL,     -- paid, cancelled or expired
  UNIQUE KEY orders_idem (sale_id, uid, idem_key),
  KEY orders_uid (uid, id),
  KEY orders_due (status, pay_before)
);

-- One row for each unit that a live order holds: a buyer's slots are 1 to the sale's limit. Freed with the order.
CREATE TABLE order_slots (
  sale_id  BIGINT      NOT NULL,
  uid      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  slot     INT         NOT NULL,
  order_id VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (sale_id, uid, slot),
  KEY order_slots_order (order_id)
);

-- Every change of a sale's stock row: what it was, by how much it changed, what it is, and which order or intent did it.
CREATE TABLE ledger (
  id               BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sale_id          BIGINT      NOT NULL,
  kind             VARCHAR(16) NOT NULL, -- allot, order, pay, cancel, expire, issue, restock, return
  ref              VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- order id, or intent:ID
  available_before BIGINT      NOT NULL,
  available_change BIGINT      NOT NULL,
  available_after  BIGINT      NOT NULL,
  locked_before    BIGINT      NOT NULL,
  locked_change    BIGINT      NOT NULL,
  locked_after     BIGINT      NOT NULL,
  created_at       DATETIME(3) NOT NULL,
  UNIQUE KEY ledger_once (sale_id, kind, ref)
);

-- What is decided in MySQL and still to be done in Redis. Written in the transaction that decided; done once there.
CREATE TABLE intents (
  id         BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sale_id    BIGINT      NOT NULL,
  kind       VARCHAR(16) NOT NULL, -- release (of order_id), adjust (by quantity), define
  order_id   VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  quantity   BIGINT      NOT NULL DEFAULT 0,
  created_at DATETIME(3) NOT NULL,
  done_at    DATETIME(3) NULL,
  KEY intents_open (done_at, id),
  KEY intents_sale (sale_id, kind)
);

CREATE TABLE audit_log (
  id           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at           DATETIME(3)  NOT NULL,
  who          VARCHAR(64)  NOT NULL,
  action       VARCHAR(64)  NOT NULL,
  target       VARCHAR(64)  NOT NULL,
  before_value TEXT         NOT NULL,
  after_value  TEXT         NOT NULL
) DEFAULT CHARSET=utf8mb4;

-- Answers to admin requests that carried an Idempotency-Key: a repeat gets the first one.
CREATE TABLE admin_requests (
  idem_key   VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  request    CHAR(64)     NOT NULL, -- hash of method, path and body
  status     INT          NOT NULL,
  answer     TEXT         NOT NULL,
  created_at DATETIME(3)  NOT NULL
) DEFAULT CHARSET=utf8mb4;

-- +goose Down
DROP TABLE admin_requests, audit_log, intents, ledger, order_slots, orders, sale_stock, tranches, sales, skus;
