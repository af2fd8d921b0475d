package network

import (
	"bytes"
	"net/netip"
)

// ClientForwarded is Client by the values of all Forwarded fields (RFC 7239). An element without exactly one for= ends the search
// as an entry that is no address does. Elements are cut at every comma, also in quotes: no address has one, and a client must not be
// able to hide what a proxy appends behind a quote that it opened.
func ClientForwarded(peer netip.Addr, trusted Set, fields [][]byte) netip.Addr {
	return walk(peer, trusted, fields, true)
}

// forNode is the node of an element's for=, without quotes. It is nil where the element is malformed or has none.
func forNode(element []byte) (node []byte) {
	for pair := range bytes.SplitSeq(element, semicolon) {
		name, value, ok := bytes.Cut(pair, equals)
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if !ok || len(value) == 0 || bytes.ContainsAny(value, "\"\\ \t") {
			return nil
		}
		if !bytes.EqualFold(bytes.TrimSpace(name), forName) {
			continue
		}
		if node != nil {
			return nil
		}
		node = value
	}
	return node
}

var semicolon, equals, forName = []byte(";"), []byte("="), []byte("for")
