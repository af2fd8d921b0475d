package catalog

import "floodgate.internal/backend/sale"

// What is in package sale now.
type (
	Sale    = sale.Sale
	Tranche = sale.Tranche
	Queryer = sale.Queryer
)

var (
	Read         = sale.Read
	ArchiveToken = sale.ArchiveToken
	ErrNoArchive = sale.ErrNotArchived
	ErrArchived  = sale.ErrArchived
)
