package edge

// standby is GET and DELETE /v1/sales/{sale_id}/standby: the place in the sale's standby line, and leaving it.
func (x *exchange) standby() {
	if x.knownSale() && x.user() && x.noBody() && x.admitUser(x.uid) && x.room(0) {
		x.forward(x.request())
	}
}

// joinStandby is POST /v1/sales/{sale_id}/standby.
func (x *exchange) joinStandby() {
	if x.knownSale() && x.user() && x.mayBuy() && x.noBody() && x.admitUser(x.uid) && x.room(0) {
		x.forward(x.request())
	}
}
