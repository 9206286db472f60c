local floor = given
