//go:build old

package main

import "github.com/IBM/sarama"

var version = sarama.V2_8_0_0

var lacks = []string{"cluster id", "none so late", "null headers"}
