// A planner for grid worlds. It keeps a map of what it has seen, finds the nearest thing that brings it closer to its
// task by breadth-first search, goes there and acts. Where no plan helps, it learns by Q-learning.

side(1, 0, east).    side(0, 1, south).    side(-1, 0, west).    side(0, -1, north).
right_of(east, south).  right_of(south, west).  right_of(west, north).  right_of(north, east).
walkable(empty).  walkable(floor).  walkable(goal).  walkable(open_door).

fits(Kind, Kind) :- true.
fits(_, any) :- true.
fits(open_door, door) :- true.
fits(closed_door, door) :- true.
fits(locked_door, door) :- true.
does(go_to, done).  does(pick_up, pickup).  does(open, toggle).

// ---- intentions over several steps: an aim, and the cells of the route to where it can be carried out

+!act : aim(What, X, Y) & route([])
  <- !carry_out(What, X, Y).

+!act : route([p(X, Y) | Rest]) & at(X, Y)
  <- -+route(Rest);
     !act.

+!act : route([p(X, Y) | _]) & cell(X, Y, Kind, _) & walkable(Kind)
  <- !step_to(X, Y).

+!act : task(_, _, _) & not helpless
  <- .abolish(aim(_, _, _));
     .abolish(route(_));
     !search;
     !aim;
     .abolish(reached(_, _, _, _));
     .abolish(fresh(_, _));
     !act.

+!act : state(S)
  <- -helpless;
     .choose(S, A);
     .act(A, R, T);
     .learn(S, A, R, T).

// What is seen for the first time may change the plan.
+cell(_, _, Kind, _) : Kind \== empty & Kind \== wall & Kind \== lava
  <- .abolish(aim(_, _, _));
     .abolish(route(_)).

+episode(_)
  <- .abolish(aim(_, _, _));
     .abolish(route(_));
     -helpless.

// ---- which aim: the nearest cell that serves, in this order

+!aim : task(reach, _, _) & cell(X, Y, goal, _) & reached(X, Y, _, _)
  <- !go(arrive, X, Y, X, Y).

+!aim : task(Verb, Kind, Color) & does(Verb, What) & reached(X, Y, _, _) & side(DX, DY, _)
      & cell(X + DX, Y + DY, Seen, Paint) & fits(Seen, Kind) & fits(Paint, Color)
      & Seen \== empty & Seen \== wall & (Seen \== locked_door | carrying(key, Paint))
      & not (Verb == open & Seen == open_door)
  <- !go(What, X + DX, Y + DY, X, Y).

+!aim : carrying(key, Color) & reached(X, Y, _, _) & side(DX, DY, _) & cell(X + DX, Y + DY, locked_door, Color)
  <- !go(toggle, X + DX, Y + DY, X, Y).

+!aim : carrying(nothing, _) & cell(_, _, locked_door, Color)
      & reached(X, Y, _, _) & side(DX, DY, _) & cell(X + DX, Y + DY, key, Color)
  <- !go(pickup, X + DX, Y + DY, X, Y).

+!aim : reached(X, Y, _, _) & side(DX, DY, _) & cell(X + DX, Y + DY, closed_door, _)
  <- !go(toggle, X + DX, Y + DY, X, Y).

+!aim : reached(X, Y, _, _) & side(DX, DY, _) & not cell(X + DX, Y + DY, _, _)
  <- !go(look, X + DX, Y + DY, X, Y).

+!aim
  <- +helpless.

+!go(What, TargetX, TargetY, X, Y)
  <- +aim(What, TargetX, TargetY);
     !trace(X, Y, []).

+!trace(X, Y, Route) : at(X, Y)
  <- +route(Route).

+!trace(X, Y, Route) : reached(X, Y, FromX, FromY)
  <- .concat([p(X, Y)], Route, Longer);
     !trace(FromX, FromY, Longer).

// ---- breadth-first search: reached(X, Y, FromX, FromY), the nearest cells first

+!search : at(X, Y)
  <- .abolish(reached(_, _, _, _));
     +reached(X, Y, X, Y);
     !spread([p(X, Y)]).

+!spread([]).

+!spread(Cells)
  <- .abolish(fresh(_, _));
     for (.member(p(X, Y), Cells)) {
       for (side(DX, DY, _)) {
         if (cell(X + DX, Y + DY, Kind, _) & walkable(Kind) & not reached(X + DX, Y + DY, _, _)) {
           +reached(X + DX, Y + DY, X, Y);
           +fresh(X + DX, Y + DY);
         }
       }
     }
     .findall(p(FX, FY), fresh(FX, FY), Next);
     !spread(Next).

// ---- one step

+!step_to(X, Y) : at(AtX, AtY) & side(X - AtX, Y - AtY, Way)
  <- !turn_or(Way, forward).

+!carry_out(arrive, _, _)
  <- .abolish(aim(_, _, _));
     .abolish(route(_));
     !act.

+!carry_out(What, X, Y) : at(AtX, AtY) & side(X - AtX, Y - AtY, Way) & facing(Way)
  <- .abolish(aim(_, _, _));
     .abolish(route(_));
     !perform(What).

+!carry_out(_, X, Y) : at(AtX, AtY) & side(X - AtX, Y - AtY, Way)
  <- !turn_or(Way, done).

+!perform(look)
  <- !act.

+!perform(What)
  <- .act(What).

+!turn_or(Way, What) : facing(Way)
  <- .act(What).

+!turn_or(Way, _) : facing(Now) & right_of(Now, Way)
  <- .act(right).

+!turn_or(_, _)
  <- .act(left).
