//go:build tools

// Package sarama names what sarama's functional tests need: the tests are those of the module itself.
package sarama

import (
	_ "github.com/IBM/sarama"
	_ "github.com/Shopify/toxiproxy/v2/cmd/server"
)
