-- +goose Up

-- How often, and between which times, a user's presses in a sale met a rule, as gateways hand it over.
CREATE TABLE timeline (
  sale_id  BIGINT      NOT NULL,
  uid      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  rule     VARCHAR(24) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  first_at DATETIME(3) NOT NULL,
  last_at  DATETIME(3) NOT NULL,
  times    BIGINT      NOT NULL,
  PRIMARY KEY (sale_id, uid, rule),
  KEY timeline_age (sale_id, last_at)
);

-- What is kept of a sale, and what is not. Locked by whoever changes rows of timeline or sale_states for the sale.
CREATE TABLE timeline_sales (
  sale_id      BIGINT      NOT NULL PRIMARY KEY, -- 0: dropped records of sales that were too many to name
  held         BIGINT      NOT NULL DEFAULT 0,   -- rows of timeline
  oldest_at    DATETIME(3) NULL,                 -- none of them was last changed before; NULL: there is none
  dropped      BIGINT      NOT NULL DEFAULT 0,   -- presses that were not kept, for want of room
  dropped_from DATETIME(3) NULL,
  dropped_to   DATETIME(3) NULL,
  pruned_to    DATETIME(3) NULL,                 -- rows of before were deleted for their age
  state        VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- the last of sale_states; gone: ended, and they were deleted
  state_at     DATETIME(3) NULL,
  changes      INT         NOT NULL DEFAULT 0,   -- rows of sale_states
  unlisted     BIGINT      NOT NULL DEFAULT 0,   -- changes of state after those
  KEY timeline_sales_oldest (oldest_at),
  KEY timeline_sales_state (state, state_at)
);

-- A sale's own history.
CREATE TABLE sale_states (
  sale_id BIGINT      NOT NULL,
  n       INT         NOT NULL,
  at      DATETIME(3) NOT NULL,
  state   VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- upcoming, open, sold_out, paused, ended
  sure    BOOLEAN     NOT NULL, -- FALSE: nobody watched just before, so it may have begun earlier, and others may be missing
  PRIMARY KEY (sale_id, n)
);

-- The lives of gateways, and what was taken from each last.
CREATE TABLE timeline_gateways (
  id    VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  seq   BIGINT      NOT NULL,
  at    DATETIME(3) NOT NULL,
  ended BOOLEAN     NOT NULL, -- it said that it has nothing more
  KEY timeline_gateways_at (at)
);

-- Which process writes sale_states, and when it last said so; '' where that one has ended.
CREATE TABLE timeline_watch (
  only_row TINYINT     NOT NULL PRIMARY KEY,
  holder   VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  said_at  DATETIME(3) NOT NULL
);

-- +goose Down
DROP TABLE timeline_watch, timeline_gateways, sale_states, timeline_sales, timeline;
