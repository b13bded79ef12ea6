package gen

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
	Words []string
}

// Document is the document of m, in names.
func (m *Module) Document() []byte { return Join(m.Words...) }

var moduleVocabulary = newVocabulary([]string{"module", "size", "mutate", "stack"})

// ModuleOf decodes a document to a module: words of the form name or name:number.
// The last module and the last size count, and the first four mutations.
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
		}
	}
	m.Words = r.canon
	return m, nil
}
