package demux

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
)

// both reads both sinks of src to their ends, at once.
func both(t *testing.T, src Source, o Options) (got [2]string, ends [2]error, wait error) {
	t.Helper()
	d, err := New(src, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	done := make(chan struct{})
	for i, s := range []*Sink{d.Stdout(), d.Stderr()} {
		go func() {
			var b bytes.Buffer
			_, ends[i] = b.ReadFrom(s)
			got[i] = b.String()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	return got, ends, d.Wait(context.Background())
}

// backpressure needs no directory.
func backpressure() Options {
	o := DefaultOptions()
	o.Policy = Backpressure
	return o
}

// TestEndOfDocker: how a Docker stream ends is the end of both sinks, after all
// data, and never EOF unless it was one.
func TestEndOfDocker(t *testing.T) {
	valid := dockerFrame(dockerFrame(nil, 1, []byte("out")), 2, []byte("err"))
	remote := dockerFrame(valid, 3, []byte("no such container"))
	reset := errors.New("reset")
	for _, c := range []struct {
		name string
		r    io.Reader
		want func(error) bool
		data string
	}{
		{"whole", bytes.NewReader(valid), func(err error) bool { return err == nil }, "out err"},
		{"cut-payload", bytes.NewReader(valid[:len(valid)-1]), func(err error) bool { return err == io.ErrUnexpectedEOF }, "out er"},
		{"cut-header", bytes.NewReader(valid[:15]), func(err error) bool { return err == io.ErrUnexpectedEOF }, "out "},
		{"reset", io.MultiReader(bytes.NewReader(valid), iotest.ErrReader(reset)), func(err error) bool { return errors.As(err, new(*SourceError)) && errors.Is(err, reset) }, "out err"},
		{"raw", strings.NewReader("$ ls\r\n"), func(err error) bool { return errors.As(err, new(*SourceError)) && errors.As(err, new(*FrameError)) }, " "},
		{"remote", bytes.NewReader(remote), func(err error) bool {
			var re *RemoteError
			return errors.As(err, &re) && re.Text == "no such container"
		}, "out err"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ends, wait := both(t, FromDocker(c.r), backpressure())
			if got[0]+" "+got[1] != c.data || !c.want(ends[0]) || !c.want(ends[1]) || !c.want(wait) {
				t.Errorf("%q, %v, %v, Wait %v", got, ends[0], ends[1], wait)
			}
		})
	}
}

// TestServerStaysOpen: a server that says how the command ended and then nothing
// more, not even an end, costs ExitDrain.
func TestServerStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		n := 0
		src := FromKubernetes(func() (byte, io.Reader, error) {
			switch n++; n {
			case 1:
				return 1, strings.NewReader("out"), nil
			case 2:
				return 3, strings.NewReader(kubeFailure), nil
			}
			<-open
			return 0, nil, io.EOF
		})
		got, ends, wait := both(t, src, backpressure())
		var exit *RemoteExit
		if got[0] != "out" || ends != [2]error{} || !errors.As(wait, &exit) || exit.Code != 7 {
			t.Errorf("%q, %v, Wait %v", got, ends, wait)
		}
		close(open)
	})
}

// TestConnectionCut: a connection that ends before the exit was told is no success,
// though both streams had ended.
func TestConnectionCut(t *testing.T) {
	src := FromKubernetes(kubeConnection(io.EOF, kubeMessage{1, "out"}, kubeMessage{255, "\x01"}, kubeMessage{2, "err"}))
	got, ends, wait := both(t, src, backpressure())
	if got != [2]string{"out", "err"} || ends[0] != nil || ends[1] != io.ErrUnexpectedEOF || wait != io.ErrUnexpectedEOF {
		t.Errorf("%q, %v, Wait %v", got, ends, wait)
	}
}
