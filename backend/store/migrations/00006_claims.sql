-- +goose Up

-- The public knows nothing of a campaign that is not published.
ALTER TABLE sales ADD COLUMN published BOOLEAN NOT NULL DEFAULT TRUE;

-- Counts every change of the row's units: whoever read a version knows by it whether the row is still as it was.
ALTER TABLE sale_stock ADD COLUMN version BIGINT NOT NULL DEFAULT 0;

-- One row for each unit that a coupon order was issued.
CREATE TABLE coupon_claims (
  id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, -- order id, dot, slot
  order_id    VARCHAR(56) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  sale_id     BIGINT      NOT NULL,
  uid         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state       VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- new, used, expired
  claimed_at  DATETIME(3) NOT NULL,
  valid_until DATETIME(3) NOT NULL, -- the campaign's when it was issued
  ended_at    DATETIME(3) NULL,     -- used or expired
  KEY coupon_claims_uid (uid, id),
  KEY coupon_claims_sale (sale_id),
  KEY coupon_claims_due (state, valid_until)
);

-- What was issued before there were claims.
INSERT INTO coupon_claims (id, order_id, sale_id, uid, state, claimed_at, valid_until)
SELECT CONCAT(o.id, '.', t.slot), o.id, o.sale_id, o.uid, 'new', o.decided_at, s.ends_at
FROM orders o JOIN order_slots t ON t.order_id = o.id JOIN sales s ON s.id = o.sale_id
WHERE o.status = 'issued' AND NOT EXISTS (SELECT 1 FROM coupon_claims c WHERE c.order_id = o.id);

-- +goose Down
DROP TABLE coupon_claims;
ALTER TABLE sale_stock DROP COLUMN version;
ALTER TABLE sales DROP COLUMN published;
