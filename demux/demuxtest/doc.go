// Package demuxtest is the conformance suite for any demultiplexer that splits
// one source of interleaved events into two streams, and the experiment that
// measures what a policy costs when a reader lags.
//
// A test of a demultiplexer is one line:
//
//	func TestConformance(t *testing.T) { demuxtest.Run(t, factory) }
//
// [Check] does the same without a testing.T. The laws are stated in terms of
// [demux.Options] and its errors; a demultiplexer that has no Stats, Wait,
// deadlines, WriteTo or gaps may leave them out, and the laws about them are
// reported as not offered, never as held.
//
// [Experiment] runs one cell of the experiment in lock-step and gives exact
// peaks. [Schedule] turns bytes into a random schedule of events, reads, closes
// and faults and judges it against two byte slices.
//
// The suite judges no speed. Framing and real processes are tested where the
// sources are; testdata/cases.csv says where each of the forty cases is.
package demuxtest
