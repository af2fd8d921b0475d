-- +goose Up

-- What a coupon campaign has beside a sale. It is published unless it is paused.
ALTER TABLE sales ADD COLUMN category VARCHAR(64) NOT NULL DEFAULT '';
ALTER TABLE sales ADD COLUMN stock_guard VARCHAR(16) NOT NULL DEFAULT ''; -- conditional, version

-- +goose Down
ALTER TABLE sales DROP COLUMN stock_guard;
ALTER TABLE sales DROP COLUMN category;
