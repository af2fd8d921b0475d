package problem

import "testing"

// A prepared problem is answered with the bytes that the problem itself would have.
func TestPreparedIsTheProblemItself(t *testing.T) {
	p := New(SoldOut, `nothing is left of "it"`)
	for _, id := range []string{"", "r-1", "a-longer-id-of-a-request"} {
		got := string(Prepare(p).AppendBody([]byte("before "), []byte(id)))
		if want := "before " + string(p.JSON(id)); got != want || Prepare(p).Len([]byte(id)) != len(p.JSON(id)) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if q := Prepare(p); q.Status != p.Status || q.Code != p.Code {
		t.Errorf("got %d %s, want %d %s", q.Status, q.Code, p.Status, p.Code)
	}
}
