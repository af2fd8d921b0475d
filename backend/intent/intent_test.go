package intent

import (
	"fmt"
	"testing"
)

// What orders left behind is done side by side, an operator's changes of one sale one after the other.
func TestAnOperatorsChangesStayInOrder(t *testing.T) {
	list := []Intent{{ID: 1, Of: 7, Kind: adjust}, {ID: 2, Of: 7, Kind: release, Order: "a"}, {ID: 3, Of: 8, Kind: define},
		{ID: 4, Of: 7, Kind: define}, {ID: 5, Of: 7, Kind: release, Order: "b"}, {ID: 6, Of: 7, Kind: archive}, {ID: 7, Of: 8, Kind: archive}}
	var got [][]int64
	for _, row := range rows(list) {
		var ids []int64
		for _, i := range row {
			ids = append(ids, i.ID)
		}
		got = append(got, ids)
	}
	if want := "[[1 4 6] [2] [3 7] [5]]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
