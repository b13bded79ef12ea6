package demux

import (
	"context"
	"io"
	"iter"
	"time"
)

// STUB: the signatures everyone builds against until the engine lands.

type Demux struct{}

func New(src Source, o Options) (*Demux, error) { panic("stub") }
func (d *Demux) Stdout() *Sink                  { panic("stub") }
func (d *Demux) Stderr() *Sink                  { panic("stub") }
func (d *Demux) Sink(Stream) *Sink              { panic("stub") }
func (d *Demux) Wait(ctx context.Context) error { panic("stub") } // until the source has ended: nil, Exit's Err, or what ended it
func (d *Demux) Stats() Stats                   { panic("stub") }
func (d *Demux) Close() error                   { panic("stub") }

type Sink struct{}

func (s *Sink) Read(p []byte) (int, error)                             { panic("stub") }
func (s *Sink) ReadContext(ctx context.Context, p []byte) (int, error) { panic("stub") }
func (s *Sink) SetReadDeadline(t time.Time) error                      { panic("stub") }
func (s *Sink) WriteTo(w io.Writer) (int64, error)                     { panic("stub") }
func (s *Sink) Buffered() int64                                        { panic("stub") }
func (s *Sink) Gaps() []Gap                                            { panic("stub") }
func (s *Sink) Close() error                                           { panic("stub") }

func ParsePolicy(name string) (Policy, error) { panic("stub") }

func FromEvents(seq iter.Seq2[Event, error]) Source { panic("stub") }
