package uicheck

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the pictures of the pages and docs/pictures.md")

const (
	docs = "../../docs"
	// colours of a picture: as many as four bits tell apart.
	colours = 16
	// pictureBytes bounds a picture.
	pictureBytes = 48 << 10
)

// widths and schemes of the pictures.
var (
	widths  = []int64{400, 1000, 1800}
	schemes = []string{"light", "dark"}
)

func picture(name, scheme string, width int64) string {
	return fmt.Sprintf("pictures/ui-%s-%s-%d.png", name, scheme, width)
}

// draw writes the picture of the shown page, with -update.
func (b *tab) draw(name, scheme string, width int64) {
	b.Helper()
	if !*update || !slices.Contains(widths, width) {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	taken, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(b, err)
	whole, err := png.Decode(bytes.NewReader(taken))
	require.NoError(b, err)
	var small bytes.Buffer
	require.NoError(b, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduced(whole)))
	require.Less(b, small.Len(), pictureBytes, name)
	require.NoError(b, os.WriteFile(filepath.Join(docs, filepath.FromSlash(picture(name, scheme, width))), small.Bytes(), 0o644))
}

// reduced is a picture in few colours: frequent ones, and rare ones that no other comes close to.
func reduced(whole image.Image) *image.Paletted {
	bounds := whole.Bounds()
	counts := make(map[color.RGBA]int)
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(whole.At(x, y)).(color.RGBA) } //nolint:errcheck,forcetypeassert // a model's own type
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	all := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(uint32(a.R)<<16|uint32(a.G)<<8|uint32(a.B), uint32(b.R)<<16|uint32(b.G)<<8|uint32(b.B)))
	})
	// The eye finds by its hue what needs a person: that counts more than how light a colour is.
	apart := func(a, b color.RGBA) float64 {
		y, u, v := color.RGBToYCbCr(a.R, a.G, a.B)
		y2, u2, v2 := color.RGBToYCbCr(b.R, b.G, b.B)
		light, blue, red := float64(y)-float64(y2), float64(u)-float64(u2), float64(v)-float64(v2)
		return light*light + 6*(blue*blue+red*red)
	}
	palette, nearest, index := color.Palette{}, make(map[color.RGBA]float64), make(map[color.RGBA]uint8)
	add := func(next color.RGBA) {
		palette = append(palette, next)
		for _, c := range all {
			if d := apart(c, next); len(palette) == 1 || d < nearest[c] {
				nearest[c], index[c] = d, uint8(len(palette)-1) //nolint:gosec // below 16
			}
		}
	}
	for add(all[0]); len(palette) < min(colours, len(all)); {
		add(slices.MaxFunc(all, func(a, b color.RGBA) int {
			return cmp.Compare(math.Sqrt(float64(counts[a]))*nearest[a], math.Sqrt(float64(counts[b]))*nearest[b])
		}))
	}
	small := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			small.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return small
}

// gallery is docs/pictures.md.
func gallery() string {
	var text strings.Builder
	text.WriteString(`# Pictures of the inspector

After this page you know how each page of [the inspector](inspector.md) looks, and which question it answers.

The pictures show a browser of 1,000 pixels, dark if your system is. Below each are a narrow and a wide one, both light
and dark.

<!-- Written by: go test -C tools/uicheck -update -->
`)
	for _, look := range looks {
		if look.answers == "" {
			continue
		}
		fmt.Fprintf(&text, "\n## %s\n\n%s\n\n<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"%s\">\n  <img alt=\"%s\" src=\"%s\">\n</picture>\n\n",
			look.title, look.answers, picture(look.name, "dark", 1000), look.shows, picture(look.name, "light", 1000))
		for i, scheme := range schemes {
			for j, width := range []int64{400, 1800} {
				number := strings.Replace(fmt.Sprint(width), "1800", "1,800", 1)
				end := ","
				if i == 1 && j == 1 {
					end = ""
				}
				fmt.Fprintf(&text, "[%s, %s](%s)%s\n", number, scheme, picture(look.name, scheme, width), end)
			}
		}
	}
	return text.String()
}

func TestGallery_EachPage_IsPicturedInLightAndDark(t *testing.T) {
	file := filepath.Join(docs, "pictures.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(gallery()), 0o644))
		return // the other tests write the pictures
	}
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, gallery(), string(page), "run: go test -C tools/uicheck -update")
	known := map[string]bool{}
	for _, look := range looks {
		for _, scheme := range schemes {
			for _, width := range widths {
				if look.answers != "" {
					known[picture(look.name, scheme, width)] = true
					require.FileExists(t, filepath.Join(docs, filepath.FromSlash(picture(look.name, scheme, width))), "run: go test -C tools/uicheck -update")
				}
			}
		}
	}
	found, err := filepath.Glob(filepath.Join(docs, "pictures", "ui-*.png"))
	require.NoError(t, err)
	for _, name := range found {
		require.True(t, known["pictures/"+filepath.Base(name)], "%s is of no page: delete it", name)
	}
}

func TestReduced_APageWithRareColours_KeepsThem(t *testing.T) {
	whole := image.NewRGBA(image.Rect(0, 0, 100, 100))
	for y := range 100 {
		for x := range 100 {
			grey := uint8(250 - (x+y)%40) //nolint:gosec // small
			whole.Set(x, y, color.RGBA{grey, grey, grey, 255})
		}
	}
	red, amber := color.RGBA{180, 30, 20, 255}, color.RGBA{240, 190, 90, 255}
	whole.Set(5, 5, red)
	whole.Set(50, 50, amber)
	small := reduced(whole)
	require.Len(t, small.Palette, colours)
	require.Equal(t, red, small.At(5, 5))
	require.Equal(t, amber, small.At(50, 50))
}
