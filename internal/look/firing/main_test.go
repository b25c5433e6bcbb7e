package firing

import (
	"testing"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }
