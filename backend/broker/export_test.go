package broker

// WaitingFences is how many calls of Fence have no answer yet.
func (b *Broker) WaitingFences() int {
	b.fences.mu.Lock()
	defer b.fences.mu.Unlock()
	return len(b.fences.waiting)
}
