package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Each function below makes the input of one workload and works out the answer
// on its own, in Go, from the same draws.

var nouns = strings.Fields("anchor basket copper dahlia ember falcon garnet harbour indigo jasmine kettle lantern meadow nectar orchid pepper quartz ribbon saffron timber umbrella velvet willow yarrow zephyr")

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// floorDiv is Math.floor(a / b) for whole numbers below 2^53.
func floorDiv(a, b int) int { return int(math.Floor(float64(a) / float64(b))) }

// pair is written as a JSON array of two, as an entry of a JavaScript Map is.
type pair[K, V any] struct {
	k K
	v V
}

func (p pair[K, V]) MarshalJSON() ([]byte, error) { return encode([]any{p.k, p.v}) }

func reshape(rng *rand.Rand, n int) (input, want any) {
	type point struct {
		T int `json:"t"`
		V int `json:"v"`
	}
	type inSeries struct {
		Labels json.RawMessage `json:"labels"` // an object whose order matters
		Points []point         `json:"points"`
	}
	type widget struct {
		ID     int        `json:"id"`
		Title  string     `json:"title"`
		Unit   *string    `json:"unit"`
		Hidden bool       `json:"hidden"`
		Series []inSeries `json:"series"`
	}
	type outSeries struct {
		Name   string           `json:"name"`
		Points []pair[int, any] `json:"points"`
		Min    int              `json:"min"`
		Max    int              `json:"max"`
		Last   int              `json:"last"`
	}
	type axis struct {
		Unit string `json:"unit"`
	}
	type panel struct {
		ID     int         `json:"id"`
		Title  string      `json:"title"`
		Axis   axis        `json:"axis"`
		Series []outSeries `json:"series"`
	}
	const from, step, buckets, points = 1_767_225_600, 60, 24, 60
	const to = from + step*buckets
	units := []string{"s", "B", "req/s"}
	widgets, panels := []widget{}, []panel{}
	for i := range n {
		w := widget{ID: i + 1, Title: fmt.Sprintf("  %s %s ", pick(rng, nouns), pick(rng, nouns)), Hidden: i%5 == 4}
		p := panel{ID: w.ID, Title: strings.TrimSpace(w.Title), Axis: axis{"1"}}
		if rng.IntN(3) > 0 {
			u := pick(rng, units)
			w.Unit, p.Axis.Unit = &u, u
		}
		for s := range 4 {
			labels := []string{fmt.Sprintf("host-%d", s), pick(rng, nouns)}
			raw, _ := encode(struct {
				Host string `json:"host"`
				Zone string `json:"zone"`
			}{labels[0], labels[1]})
			in := inSeries{Labels: raw}
			var count, sum [buckets]int
			out := outSeries{Name: "host=" + labels[0] + ",zone=" + labels[1], Min: math.MaxInt, Max: math.MinInt}
			for k := range points {
				// A few points lie before and after the range.
				pt := point{T: from - 2*step + k*(to-from+4*step)/points + rng.IntN(20), V: rng.IntN(100_000)}
				in.Points = append(in.Points, pt)
				out.Last = pt.V
				if pt.T < from || pt.T >= to {
					continue
				}
				b := (pt.T - from) / step
				count[b]++
				sum[b] += pt.V
				out.Min, out.Max = min(out.Min, pt.V), max(out.Max, pt.V)
			}
			for b := range buckets {
				var v any
				if count[b] > 0 {
					v = floorDiv(sum[b], count[b])
				}
				out.Points = append(out.Points, pair[int, any]{from + b*step, v})
			}
			w.Series, p.Series = append(w.Series, in), append(p.Series, out)
		}
		slices.SortFunc(p.Series, func(a, b outSeries) int {
			return cmp.Or(cmp.Compare(b.Max, a.Max), cmp.Compare(a.Name, b.Name))
		})
		widgets = append(widgets, w)
		if !w.Hidden {
			panels = append(panels, p)
		}
	}
	return map[string]any{"range": map[string]int{"from": from, "to": to}, "buckets": buckets, "widgets": widgets}, panels
}

func join(rng *rand.Rand, n int) (input, want any) {
	type customer struct {
		ID     int    `json:"id"`
		Region string `json:"region"`
		Name   string `json:"name"`
	}
	type product struct {
		ID    int    `json:"id"`
		Name  string `json:"name"`
		Cents int    `json:"cents"`
	}
	type order struct {
		ID       int              `json:"id"`
		Customer int              `json:"customer"`
		Date     string           `json:"date"`
		Lines    []pair[int, int] `json:"lines"`
	}
	type ranked struct {
		Name  string `json:"name"`
		Cents int    `json:"cents"`
	}
	type group struct {
		Region string   `json:"region"`
		Month  string   `json:"month"`
		Orders int      `json:"orders"`
		Cents  int      `json:"cents"`
		Buyers int      `json:"buyers"`
		Top    []ranked `json:"top"`
	}
	regions := []string{"east", "north", "south", "west"}
	customers, products, orders := []customer{}, []product{}, []order{}
	for i := range n / 10 {
		customers = append(customers, customer{i, pick(rng, regions), pick(rng, nouns)})
	}
	for i := range 40 {
		products = append(products, product{1000 + i, fmt.Sprintf("%s %d", pick(rng, nouns), i), 50 + rng.IntN(20_000)})
	}
	groups := map[string]*group{}
	buyers := map[string]map[int]bool{}
	sales := map[string]map[string]int{}
	for i := range n {
		day := time.Date(2026, 1, 1+rng.IntN(360), 0, 0, 0, 0, time.UTC)
		// One customer in fifty is unknown.
		o := order{ID: i, Customer: rng.IntN(len(customers) + len(customers)/50 + 1), Date: day.Format("2006-01-02")}
		for range 1 + rng.IntN(4) {
			o.Lines = append(o.Lines, pair[int, int]{1000 + rng.IntN(40), 1 + rng.IntN(9)})
		}
		orders = append(orders, o)
		if o.Customer >= len(customers) {
			continue
		}
		region, month := customers[o.Customer].Region, o.Date[:7]
		key := region + "|" + month
		if groups[key] == nil {
			groups[key] = &group{Region: region, Month: month}
			buyers[key], sales[key] = map[int]bool{}, map[string]int{}
		}
		g := groups[key]
		g.Orders++
		buyers[key][o.Customer] = true
		for _, l := range o.Lines {
			p := products[l.k-1000]
			g.Cents += p.Cents * l.v
			sales[key][p.Name] += p.Cents * l.v
		}
	}
	answer := []*group{}
	for key, g := range groups {
		g.Buyers = len(buyers[key])
		for name, cents := range sales[key] {
			g.Top = append(g.Top, ranked{name, cents})
		}
		slices.SortFunc(g.Top, func(a, b ranked) int {
			return cmp.Or(cmp.Compare(b.Cents, a.Cents), cmp.Compare(a.Name, b.Name))
		})
		g.Top = g.Top[:min(3, len(g.Top))]
		answer = append(answer, g)
	}
	slices.SortFunc(answer, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Month, b.Month))
	})
	return map[string]any{"customers": customers, "products": products, "orders": orders}, answer
}

func template(rng *rand.Rand, n int) (input, want any) {
	type line struct {
		Name string `json:"name"`
		Qty  int    `json:"qty"`
		Gift bool   `json:"gift"`
	}
	type section struct {
		Title string         `json:"title"`
		Meta  map[string]any `json:"meta"`
		Lines []line         `json:"lines"`
	}
	const source = "<h1>{{shop.name}}</h1>\n{{#sections}}<h2 class=\"{{meta.kind}}\">{{title}}</h2>\n<ul>{{#lines}}<li>{{qty}} × {{name}}{{#gift}} <b>gift from {{shop.name}}</b>{{/}}{{{shop.rule}}}</li>\n{{/}}</ul>{{/}}"
	const shop, rule = `Rose & "Thorn"`, "<hr>"
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace
	var b strings.Builder
	fmt.Fprintf(&b, "<h1>%s</h1>\n", escape(shop))
	sections := []section{}
	for range n {
		s := section{Title: fmt.Sprintf("<%s> & %s", pick(rng, nouns), pick(rng, nouns)), Meta: map[string]any{"kind": pick(rng, nouns)}, Lines: []line{}}
		fmt.Fprintf(&b, "<h2 class=\"%s\">%s</h2>\n<ul>", s.Meta["kind"], escape(s.Title))
		for range 5 + rng.IntN(4) {
			l := line{fmt.Sprintf(`%s "%s"`, pick(rng, nouns), pick(rng, nouns)), rng.IntN(20), rng.IntN(4) == 0}
			s.Lines = append(s.Lines, l)
			fmt.Fprintf(&b, "<li>%d × %s", l.Qty, escape(l.Name))
			if l.Gift {
				fmt.Fprintf(&b, " <b>gift from %s</b>", escape(shop))
			}
			fmt.Fprintf(&b, "%s</li>\n", rule)
		}
		b.WriteString("</ul>")
		sections = append(sections, s)
	}
	data := map[string]any{"shop": map[string]string{"name": shop, "rule": rule}, "sections": sections}
	return map[string]any{"template": source, "data": data}, b.String()
}

func format(rng *rand.Rand, n int) (input, want any) {
	type event struct {
		At      int64  `json:"at"`
		Until   string `json:"until"`
		Name    string `json:"name"`
		Seconds int    `json:"seconds"`
		Cents   int    `json:"cents"`
	}
	title := func(w string) string { return strings.ToUpper(w[:1]) + strings.ToLower(w[1:]) }
	grouped := func(digits string) string {
		for i := len(digits) - 3; i > 0; i -= 3 {
			digits = digits[:i] + "," + digits[i:]
		}
		return digits
	}
	duration := func(s int) string {
		var parts []string
		for _, u := range []struct {
			name string
			size int
		}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}} {
			if s >= u.size {
				parts = append(parts, strconv.Itoa(s/u.size)+u.name)
				s %= u.size
			}
		}
		if len(parts) == 0 {
			return "0s"
		}
		return strings.Join(parts[:min(2, len(parts))], " ")
	}
	events, lines := []event{}, []string{}
	for i := range n {
		at := time.UnixMilli(rng.Int64N(2_000_000_000_000)).UTC()
		seconds := rng.IntN(1 << (1 + rng.IntN(20)))
		until := at.Add(time.Duration(seconds) * time.Second).Truncate(time.Second)
		zone := time.FixedZone("", (rng.IntN(25)-12)*3600)
		a, b := strings.ToUpper(pick(rng, nouns)), pick(rng, nouns)
		cents := rng.IntN(1<<(1+rng.IntN(40))) - 5000
		events = append(events, event{at.UnixMilli(), until.In(zone).Format("2006-01-02T15:04:05-07:00"), a + "_" + b, seconds, cents})
		sign, size := "", cents
		if cents < 0 {
			sign, size = "-", -cents
		}
		name := title(a) + " " + title(b)
		lines = append(lines, fmt.Sprintf("%5d %s %s %s %s %s%s.%02d", i+1, at.Format("Mon 2006-01-02 15:04"),
			until.Format("2006-01-02T15:04:05.000Z"), name+strings.Repeat(".", max(0, 24-len(name))), duration(seconds), sign, grouped(strconv.Itoa(size/100)), size%100))
	}
	return map[string]any{"events": events}, strings.Join(lines, "\n")
}

func extract(rng *rand.Rand, n int) (input, want any) {
	type answer struct {
		Bad      int                 `json:"bad"`
		Bytes    int                 `json:"bytes"`
		Queries  int                 `json:"queries"`
		Statuses []pair[string, int] `json:"statuses"`
		Paths    []pair[string, int] `json:"paths"`
		Tags     []pair[string, int] `json:"tags"`
	}
	sorted := func(counts map[string]int) []pair[string, int] {
		out := []pair[string, int]{}
		for k, v := range counts {
			out = append(out, pair[string, int]{k, v})
		}
		slices.SortFunc(out, func(a, b pair[string, int]) int { return cmp.Compare(a.k, b.k) })
		return out
	}
	statuses, paths, tags := map[string]int{}, map[string]int{}, map[string]int{}
	var a answer
	var lines []string
	for i := range n {
		if rng.IntN(20) == 0 {
			lines = append(lines, fmt.Sprintf("10.0.0.%d - truncated [", i%250))
			a.Bad++
			continue
		}
		status := pick(rng, []string{"200", "200", "200", "204", "301", "404", "500"})
		noun := pick(rng, nouns)
		path, route := "/"+noun, "/"+noun
		if rng.IntN(2) == 0 {
			path, route = fmt.Sprintf("/%s/%d/edit", noun, rng.IntN(9999)), "/"+noun+"/:id/edit"
		}
		statuses[status]++
		paths[route]++
		query := ""
		if k := rng.IntN(4); k > 0 {
			query = "?a=1" + strings.Repeat("&b=2", k-1)
			a.Queries += k
		}
		size := "-"
		if status != "204" {
			b := rng.IntN(100_000)
			size = strconv.Itoa(b)
			a.Bytes += b
		}
		agent, plain := `curl/8`, `curl/8`
		if rng.IntN(3) == 0 {
			agent, plain = `say \"hi\" \\o/`, `say "hi" \o/`
		}
		tags["agent:"+plain]++
		tags["node:"+noun]++
		lines = append(lines, fmt.Sprintf(`10.%d.%d.%d - %s [%02d/Mar/2026:10:00:00 +0000] "%s %s%s HTTP/1.1" %s %s agent="%s" node="%s"`,
			rng.IntN(256), rng.IntN(256), rng.IntN(256), pick(rng, []string{"-", "ann", "bob"}), 1+rng.IntN(28),
			pick(rng, []string{"GET", "POST"}), path, query, status, size, agent, noun))
	}
	a.Statuses, a.Paths, a.Tags = sorted(statuses), sorted(paths), sorted(tags)
	return map[string]string{"log": strings.Join(lines, "\n")}, a
}

func jsonToJSON(rng *rand.Rand, n int) (input, want any) {
	type tag struct {
		Name   string   `json:"name"`
		Values []string `json:"values"`
	}
	type address struct {
		StreetName string  `json:"street_name"`
		ZipCode    *string `json:"zip_code"`
	}
	type in struct {
		UserID       int     `json:"user_id"`
		DisplayName  string  `json:"display_name"`
		DeletedAt    *string `json:"deleted_at"`
		BalanceCents int     `json:"balance_cents"`
		HomeAddress  address `json:"home_address"`
		Tags         []tag   `json:"tags"`
		Scores       []any   `json:"recent_scores"`
	}
	type outAddress struct {
		StreetName string  `json:"streetName"`
		ZipCode    *string `json:"zipCode,omitempty"`
	}
	type out struct {
		UserID      int        `json:"userId"`
		DisplayName string     `json:"displayName"`
		Balance     string     `json:"balance"`
		HomeAddress outAddress `json:"homeAddress"`
		Tags        string     `json:"tags"`
		Scores      []any      `json:"recentScores"`
	}
	ins, outs := []in{}, []out{}
	for i := range n {
		cents := rng.IntN(10_000_000)
		v := in{UserID: i, DisplayName: fmt.Sprintf("%s \u00e9\u4e16\"%d\"", pick(rng, nouns), i), BalanceCents: cents,
			HomeAddress: address{StreetName: pick(rng, nouns) + " lane"}, Tags: []tag{}}
		if rng.IntN(2) == 0 {
			zip := fmt.Sprintf("%05d", rng.IntN(100_000))
			v.HomeAddress.ZipCode = &zip
		}
		var flat []string
		for range rng.IntN(4) {
			t := tag{pick(rng, nouns), []string{pick(rng, nouns), pick(rng, nouns)}}
			v.Tags = append(v.Tags, t)
			flat = append(flat, t.Name+":"+t.Values[0], t.Name+":"+t.Values[1])
		}
		v.Scores = []any{float64(rng.IntN(1000)) / 8, rng.IntN(100), rng.IntN(2) == 0, nil}
		ins = append(ins, v)
		outs = append(outs, out{v.UserID, v.DisplayName, fmt.Sprintf("%d.%02d", cents/100, cents%100),
			outAddress(v.HomeAddress), strings.Join(flat, " "), v.Scores})
	}
	text, _ := encode(ins)
	answer, _ := encode(outs)
	return map[string]string{"text": string(text)}, string(answer)
}

func sorting(rng *rand.Rand, n int) (input, want any) {
	type row struct {
		ID    int    `json:"id"`
		Team  string `json:"team"`
		Score int    `json:"score"`
		Name  string `json:"name"`
	}
	type answer struct {
		Rows    []int    `json:"rows"`
		Numbers []int    `json:"numbers"`
		Typed   []int    `json:"typed"`
		Words   []string `json:"words"`
	}
	rows, numbers, words := []row{}, []int{}, []string{}
	for i := range n {
		rows = append(rows, row{i, pick(rng, nouns), rng.IntN(4), pick(rng, nouns[:3])})
		numbers = append(numbers, rng.IntN(2_000_000)-1_000_000)
		words = append(words, pick(rng, nouns)+strconv.Itoa(rng.IntN(n)))
	}
	a := answer{Numbers: slices.Sorted(slices.Values(numbers)), Words: slices.Compact(slices.Sorted(slices.Values(words)))}
	a.Typed = a.Numbers[:8]
	sorted := slices.Clone(rows)
	slices.SortStableFunc(sorted, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(b.Score, a.Score), cmp.Compare(a.Name, b.Name))
	})
	for _, r := range sorted {
		a.Rows = append(a.Rows, r.ID)
	}
	return map[string]any{"rows": rows, "numbers": numbers, "words": words}, a
}

func classes(rng *rand.Rand, n int) (input, want any) {
	type item struct {
		Name string `json:"name"`
		Life int    `json:"life"`
	}
	type answer struct {
		Moves int                 `json:"moves"`
		Short int                 `json:"short"`
		Lost  int                 `json:"lost"`
		Low   []string            `json:"low"`
		Left  []pair[string, int] `json:"left"`
	}
	items := make([]item, 12)
	for i := range items {
		items[i] = item{nouns[i], (i % 3) * 2} // every third keeps for ever
	}
	type lot struct{ n, until int }
	counts, lots, low := make([]int, len(items)), make([][]lot, len(items)), map[string]bool{}
	var a answer
	take := func(i, n int) int {
		n = min(n, counts[i])
		if n > 0 {
			counts[i] -= n
			a.Moves += n
			if counts[i] < 5 {
				low[items[i].Name] = true
			}
		}
		return n
	}
	events := [][3]int{}
	for k := range n {
		i, put, want := rng.IntN(len(items)), 1+rng.IntN(9), rng.IntN(10)
		events = append(events, [3]int{i, put, want})
		day := k / 8
		if items[i].Life > 0 {
			gone := 0
			kept := lots[i][:0]
			for _, l := range lots[i] {
				if l.until <= day {
					gone += l.n
				} else {
					kept = append(kept, l)
				}
			}
			lots[i] = append(kept, lot{put, day + items[i].Life})
			a.Lost += take(i, gone)
		}
		counts[i] += put
		a.Moves += put
		a.Short += want - take(i, want)
	}
	a.Low = []string{}
	for name := range low {
		a.Low = append(a.Low, name)
	}
	slices.Sort(a.Low)
	for i, it := range items {
		a.Left = append(a.Left, pair[string, int]{it.Name, counts[i] + 1})
	}
	return map[string]any{"items": items, "events": events}, a
}

func kernel(rng *rand.Rand, n int) (input, want any) {
	type answer struct {
		Trace  float64 `json:"trace"`
		Total  float64 `json:"total"`
		Primes int     `json:"primes"`
		Hash   uint32  `json:"hash"`
	}
	seed := rng.Int32()
	sieve, rounds := n*n*40, n*n*30
	state := seed
	next := func() float64 {
		state = state*1664525 + 1013904223
		return float64(uint32(state)>>8) / 16777216
	}
	m := make([]float64, 2*n*n)
	for i := range m {
		m[i] = next()
	}
	x, y := m[:n*n], m[n*n:]
	var a answer
	for i := range n {
		for j := range n {
			sum := 0.0
			for k := range n {
				sum += float64(x[i*n+k] * y[k*n+j]) // the conversion forbids a fused multiply-add
			}
			a.Total += sum
			if i == j {
				a.Trace += sum
			}
		}
	}
	composite := make([]bool, sieve+1)
	for i := 2; i <= sieve; i++ {
		if composite[i] {
			continue
		}
		a.Primes++
		for j := i * i; j <= sieve; j += i {
			composite[j] = true
		}
	}
	h := uint32(seed)
	for i := range rounds {
		h ^= uint32(i)
		h = (h ^ h>>15) * 0x2c1b3c6d
		h = h<<13 | h>>19
	}
	a.Hash = h
	return map[string]int{"n": n, "sieve": sieve, "rounds": rounds, "seed": int(seed)}, a
}
