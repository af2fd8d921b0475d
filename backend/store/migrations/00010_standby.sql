-- +goose Up

-- The standby line of a sale: who waits for a unit that comes back. One row a user, which joining anew writes again. A place is
-- given under the lock of the line's row, so places ascend with the COMMITs.
CREATE TABLE standby (
  sale_id    BIGINT      NOT NULL,
  uid        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  place      BIGINT      NOT NULL,
  order_id   VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- of the offer, whether one is ever made or not
  state      VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- waiting, offered (with the order's row), passed, left, ended
  reason     VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- why it was passed over
  joined_at  DATETIME(3) NOT NULL,
  changed_at DATETIME(3) NOT NULL,
  PRIMARY KEY (sale_id, uid),
  UNIQUE KEY standby_place (sale_id, place),
  KEY standby_waiting (state, sale_id, place)
);

CREATE TABLE standby_lines (
  sale_id BIGINT NOT NULL PRIMARY KEY,
  newest  BIGINT NOT NULL -- place that was given
);

-- +goose Down
DROP TABLE standby_lines, standby;
