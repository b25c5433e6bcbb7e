package uicheck

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the pictures of the pages")

const (
	folder = "../../docs/pictures"
	// colours of a picture: as many as four bits tell apart.
	colours = 16
	// pictureBytes bounds a picture.
	pictureBytes = 48 << 10
)

// pictures are the pictures that pages of docs show: page, scheme and width.
var pictures = []string{
	"fleet-light-1000", "timeline-dark-1000", "needs-light-1000", "recovery-light-1000", "rewind-light-1000",
}

func file(name string) string { return filepath.Join(folder, "ui-"+name+".png") }

// draw writes the picture of the shown page, with -update.
func (b *tab) draw(name string) {
	b.Helper()
	if !*update || !slices.Contains(pictures, name) {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	taken, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(b, err)
	whole, err := png.Decode(bytes.NewReader(taken))
	require.NoError(b, err)
	var small bytes.Buffer
	require.NoError(b, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduced(whole, colours)))
	require.Less(b, small.Len(), pictureBytes, name)
	require.NoError(b, os.WriteFile(file(name), small.Bytes(), 0o644))
}

// reduced is a picture in few colours: frequent ones, and rare ones that no other comes close to.
func reduced(whole image.Image, colours int) *image.Paletted {
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

func TestPictures_OfPages_AreThoseOfTheList(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(folder, "ui-*.png"))
	require.NoError(t, err)
	var want []string
	for _, name := range pictures {
		want = append(want, file(name))
	}
	require.ElementsMatch(t, want, found, "write them with: go test -C tools/uicheck -update")
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
	small := reduced(whole, colours)
	require.Len(t, small.Palette, colours)
	require.Equal(t, red, small.At(5, 5))
	require.Equal(t, amber, small.At(50, 50))
}
