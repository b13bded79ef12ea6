package gen

import "strconv"

// MaxModuleSeed and MaxModuleSize bound what a document asks of the generator of modules.
const (
	MaxModuleSeed = 1 << 30
	MaxModuleSize = 300
)

// Module says which WebAssembly module to make, in the terms of
// engine/quickjs/meter/metertest: Generate(Seed, Size), then Mutate with each
// of Mutations.
type Module struct {
	Seed      uint64
	Size      int
	Mutations []uint64
	// Stack has the meter guard the module's stack pointer.
	Stack bool
	// Moves, if there are any, are what is tried instead: copies and fills round
	// the bounds of what one instruction may move.
	Moves []Move
	Words []string
}

// Move is one memory.copy or memory.fill of Length bytes.
type Move struct {
	Fill             bool
	To, From, Length uint32
}

// The sizes that moves are made round: what the meter moves at once, and the
// memory that they want, both in bytes.
const (
	MoveChunk  = 1 << 20
	MoveMemory = 66 << 16
)

// distances are lengths, places and shifts by name.
var distances = []struct {
	name  string
	value int64
}{
	{"none", 0}, {"one", 1}, {"back-one", -1}, {"page", 1 << 16}, {"back-page", -1 << 16},
	{"chunk-less", MoveChunk - 1}, {"chunk", MoveChunk}, {"chunk-more", MoveChunk + 1},
	{"back-chunk-less", 1 - MoveChunk}, {"back-chunk", -MoveChunk}, {"back-chunk-more", -MoveChunk - 1},
	{"two-less", 2*MoveChunk - 1}, {"two", 2 * MoveChunk}, {"two-more", 2*MoveChunk + 1}, {"back-two", -2 * MoveChunk},
	{"all-less", MoveMemory - 1}, {"all", MoveMemory}, {"all-more", MoveMemory + 1}, {"half", 1 << 31}, {"most", 1<<32 - 1},
}

var distanceVocabulary = func() *vocabulary {
	var n []string
	for _, d := range distances {
		n = append(n, d.name)
	}
	return newVocabulary(n)
}()

// DistanceNames are the names that the numbers of a move can have.
func DistanceNames() []string { return distanceVocabulary.names }

func (r *reader) distance() int64 {
	if !r.more() {
		return 0
	}
	if n, err := strconv.ParseUint(r.words[0], 10, 32); err == nil && strconv.FormatUint(n, 10) == r.words[0] {
		r.canon = append(r.canon, r.words[0])
		r.words = r.words[1:]
		return int64(n)
	}
	return distances[r.name(distanceVocabulary, 0)].value
}

// maxMoves bounds the moves of one document.
const maxMoves = 16

// Document is the document of m, in names.
func (m *Module) Document() []byte { return Join(m.Words...) }

var moduleNames = []string{"module", "size", "mutate", "stack", "copy", "fill"}

// ModuleNames are the names of all productions of modules.
func ModuleNames() []string { return moduleNames }

var moduleVocabulary = newVocabulary(moduleNames)

// ModuleOf decodes a document to a module: words of the form name or name:number.
// The last module and the last size count, and the first four mutations. After
// copy and fill come three distances: the length, where from, and how far from there to.
func ModuleOf(data []byte) (*Module, error) {
	words, err := Split(data)
	if err != nil {
		return nil, err
	}
	m := &Module{Seed: 1, Size: 40}
	r := &reader{words: words}
	for r.more() {
		i, n := r.argument(moduleVocabulary, MaxModuleSeed)
		switch moduleVocabulary.names[i] {
		case "module":
			m.Seed = uint64(n)
		case "size":
			m.Size = 1 + n%MaxModuleSize
		case "mutate":
			if len(m.Mutations) < 4 {
				m.Mutations = append(m.Mutations, uint64(n))
			}
		case "stack":
			m.Stack = true
		case "copy", "fill":
			length, from, shift := r.distance(), r.distance(), r.distance()
			if len(m.Moves) < maxMoves {
				m.Moves = append(m.Moves, Move{moduleVocabulary.names[i] == "fill", uint32(from + shift), uint32(from), uint32(length)})
			}
		}
	}
	m.Words = r.canon
	return m, nil
}
