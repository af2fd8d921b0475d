-- +goose Up

-- What a timer forgets is found by an index. A refused cart has no order: no line of it could be had.
ALTER TABLE cart_requests ADD COLUMN refused BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX cart_requests_forgotten ON cart_requests (refused, answered_at, created_at);
UPDATE cart_requests SET refused = TRUE WHERE answer IS NOT NULL AND order_id NOT IN (SELECT id FROM orders WHERE sale_id = 0);

CREATE INDEX standby_changed ON standby (state, changed_at);

-- +goose Down
DROP INDEX standby_changed ON standby;
DROP INDEX cart_requests_forgotten ON cart_requests;
ALTER TABLE cart_requests DROP COLUMN refused;
