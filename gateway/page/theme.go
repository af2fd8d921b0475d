package page

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Theme is a shop's three colours, each #rrggbb. With one the page looks the same in light and dark.
type Theme struct {
	Accent     string `yaml:"accent"`     // of buttons and links
	Background string `yaml:"background"` // of the page
	Text       string `yaml:"text"`
}

// MinContrast is the least contrast of text that WCAG 2.2 asks for (1.4.3, level AA).
const MinContrast = 4.5

// Problem is what is wrong with one of a theme's colours.
type Problem struct{ Field, Why string }

// Check returns what is wrong with a theme: all three colours are given or none, each is #rrggbb, and text and accent can be
// read on the background.
func (t Theme) Check() (wrong []Problem) {
	if t == (Theme{}) {
		return nil
	}
	fields := []struct{ name, value string }{{"accent", t.Accent}, {"background", t.Background}, {"text", t.Text}}
	for _, f := range fields {
		if _, ok := parse(f.value); !ok {
			wrong = append(wrong, Problem{f.name, fmt.Sprintf("%q must be a colour like \"#0f766e\"; give all three colours, or none", f.value)})
		}
	}
	if wrong != nil {
		return wrong
	}
	background, _ := parse(t.Background)
	for _, f := range []struct{ name, value string }{fields[0], fields[2]} {
		if c, _ := parse(f.value); contrast(c, background) < MinContrast {
			wrong = append(wrong, Problem{f.name, fmt.Sprintf("%q on the background %q has a contrast of %.2f, at least %v is needed to be read: make one darker or lighter",
				f.value, t.Background, math.Floor(100*contrast(c, background))/100, MinContrast)})
		}
	}
	return wrong
}

// style is the page's style with the theme's colours. The colours of notices are those of the scheme, light or dark, that the
// background belongs to.
func (t Theme) style(css string) string {
	if t == (Theme{}) {
		return css
	}
	background, _ := parse(t.Background)
	text, _ := parse(t.Text)
	accent, _ := parse(t.Accent)
	black, white := colour{}, colour{255, 255, 255}
	scheme, media := "light", "@media not all"
	if background.luminance() < 0.18 { // as dark as mid grey
		scheme, media = "dark", "@media all"
	}
	onAccent := white
	if contrast(accent, black) > contrast(accent, white) {
		onAccent = black
	}
	off := mix(background, text, 0.1)
	if contrast(off, text) < MinContrast {
		off = background
	}
	return strings.Replace(css, "@media (prefers-color-scheme: dark)", media, 1) + fmt.Sprintf(
		":root { color-scheme: %s; --bg: %s; --panel: %[2]s; --ink: %s; --muted: %[3]s; --line: %s; --accent: %s; --accent-ink: %s; --off: %s; --off-ink: %[3]s; }\n",
		scheme, background, text, mix(background, text, 0.3), accent, onAccent, off)
}

// colour is red, green and blue, in sRGB.
type colour [3]uint8

func (c colour) String() string { return fmt.Sprintf("#%02x%02x%02x", c[0], c[1], c[2]) }

func parse(s string) (c colour, ok bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "#"), 16, 32)
	if err != nil || len(s) != 7 || s[0] != '#' || s[1] == '+' {
		return c, false
	}
	return colour{uint8(n >> 16), uint8(n >> 8), uint8(n)}, true
}

// mix is a with a share of b.
func mix(a, b colour, share float64) (c colour) {
	for i := range c {
		c[i] = uint8(math.Round(float64(a[i])*(1-share) + float64(b[i])*share))
	}
	return c
}

// luminance is the relative luminance of WCAG 2.2.
func (c colour) luminance() float64 {
	linear := func(v uint8) float64 {
		s := float64(v) / 255
		if s <= 0.04045 {
			return s / 12.92
		}
		return math.Pow((s+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(c[0]) + 0.7152*linear(c[1]) + 0.0722*linear(c[2])
}

// contrast is the contrast ratio of WCAG 2.2, 1 to 21.
func contrast(a, b colour) float64 {
	l, m := a.luminance(), b.luminance()
	return (max(l, m) + 0.05) / (min(l, m) + 0.05)
}
